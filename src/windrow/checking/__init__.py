"""Looks at an environment for the usual mistakes, by playing it.

`parent.check` is the entrance: it plays in a process of its own, so that nothing an environment does can hang or end
whoever asks. `rules` names all mistakes that are looked for.
"""
