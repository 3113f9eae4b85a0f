"""The shop: `words` and `catalogue` are its world, `goals` what is wanted, `pages` what is seen, `env` the visit."""

from windrow.envs.shop.env import ShopEnv

__all__ = ["ShopEnv"]
