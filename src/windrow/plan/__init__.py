"""Who gets which devices: layouts are enumerated, played by the real scheduler in the simulator, and compared.

Promises: the same question has the same answer. Every figure that goes in says whether it was measured or estimated,
and every layout that was looked at comes out with its figures and why it was chosen or not.

Nothing here touches a device, a model or a run folder; the question is made of numbers.
"""
