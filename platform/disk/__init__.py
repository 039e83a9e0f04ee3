"""Files on disk, written whole or not at all; transactions, locks and digests."""
