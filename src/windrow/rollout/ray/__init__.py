"""The rollout path on Ray: queue, players, scorers and engines in processes of their own, and what passes between them.

```
driver                  office of the cluster            players                    engines
RolloutScheduler ─ ask ─ Tenancy ─ queue ─ RayPlayer ── orders ──► Mailbox ─ EnvWorker
                                        ◄── news, headers only ──┘        └─ requests, in bulk ──► Switchboard ─ Engine
   ▲                                                                       ◄── tokens, in bulk ──┘
   └────────────── tokens of a batch, fetched once from the object store ──┘
```
"""
