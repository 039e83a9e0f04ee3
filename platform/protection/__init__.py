"""What a run's privacy is made of: what is done to uploads, what it costs, and what is refused."""
