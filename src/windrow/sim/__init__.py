"""The same machine on a virtual clock, against modelled engines, environments and trainers, at any scale."""
