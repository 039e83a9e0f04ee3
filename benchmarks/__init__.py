"""What measures Sotto, and the tools that make the files that ship with it."""
