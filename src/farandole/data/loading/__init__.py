"""Loading: samples decoded by threads or processes into batches, and a report on waits for input."""
