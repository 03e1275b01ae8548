"""Makes the quickstart's starting checkpoint by supervised learning; see README.md. Importing this imports no torch."""
