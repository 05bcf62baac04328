"""The ledgers that containers write: held open, read, and how much of them counts."""
