"""Small networks in two parts, and the common base of the methods that split them."""
