"""Small networks in two parts, and what the methods that split them have in common."""
