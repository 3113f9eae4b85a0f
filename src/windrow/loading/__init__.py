"""Code that is not ours: how it is loaded, where something happens in it, and how its objects are told in words."""
