"""What a method is, how it is found, and what it is handed."""
