"""The official client, synchronous and asynchronous, against a real `peeklock serve` process."""
