"""What lies on disks: files written whole or not at all, transactions, locks and digests."""
