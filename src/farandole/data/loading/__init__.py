"""Loading: samples decoded by threads or processes into batches, and the account of who waited for what."""
