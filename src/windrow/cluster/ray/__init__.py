"""The runtime on Ray: the same objects, in processes that may be anywhere in a cluster."""
