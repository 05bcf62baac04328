"""What is really in use: memory that the ledgers do not declare, and processes that the library does not see."""
