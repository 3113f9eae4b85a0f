"""What the shop's world is made of: departments, and in each of them kinds of goods, attributes and options."""

from windrow.types import Value

COLORS = ("black", "white", "red", "blue", "green", "grey", "yellow", "purple")


class Department(Value, frozen=True, kw_only=True):
    """Goods that have the same attributes and options."""

    name: str
    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Names of what can be chosen, with the values there are."""
    dollars: tuple[int, int]
    """What its goods cost, from and to."""


BRANDS = (
    "alder", "birchway", "corvo", "dunmore", "elkin", "farrow", "grebe", "halden", "isla", "juno", "kestrel", "larch",
    "marlow", "norrin", "ostra", "pell", "quarry", "rowan", "sable", "tarn", "umbra", "vesper", "wren", "yarrow",
)  # fmt: skip

DEPARTMENTS = (
    Department(
        name="clothing",
        kinds=("shirt", "jacket", "dress", "sweater", "trousers"),
        attributes=(
            "cotton", "linen", "wool", "machine washable", "long sleeve", "slim fit", "loose fit", "button closure",
            "quick drying", "wrinkle free",
        ),
        options=(("color", COLORS), ("size", ("s", "m", "l", "xl", "xxl"))),
        dollars=(12, 95),
    ),
    Department(
        name="shoes",
        kinds=("sneakers", "boots", "sandals", "loafers", "slippers"),
        attributes=(
            "leather", "suede", "rubber sole", "slip resistant", "arch support", "memory foam", "lace up", "breathable",
            "wide toe", "vegan",
        ),
        options=(("color", COLORS), ("size", ("6", "7", "8", "9", "10", "11"))),
        dollars=(15, 120),
    ),
    Department(
        name="kitchen",
        kinds=("kettle", "pan", "mug", "blender", "bottle"),
        attributes=(
            "stainless steel", "ceramic", "dishwasher safe", "nonstick", "bpa free", "heat resistant", "double walled",
            "easy clean", "stackable", "leak proof",
        ),
        options=(("color", COLORS), ("size", ("small", "medium", "large"))),
        dollars=(6, 80),
    ),
    Department(
        name="furniture",
        kinds=("chair", "desk", "shelf", "lamp", "stool"),
        attributes=(
            "solid wood", "metal frame", "adjustable height", "foldable", "easy assembly", "space saving", "padded",
            "scratch resistant", "mid century", "swivel",
        ),
        options=(("color", COLORS), ("finish", ("oak", "walnut", "pine", "maple"))),
        dollars=(25, 190),
    ),
    Department(
        name="electronics",
        kinds=("headphones", "speaker", "charger", "keyboard", "camera"),
        attributes=(
            "wireless", "noise cancelling", "fast charging", "long battery", "bluetooth", "usb c", "waterproof",
            "backlit", "compact", "plug and play",
        ),
        options=(("color", COLORS), ("pack", ("single", "double", "triple"))),
        dollars=(14, 180),
    ),
    Department(
        name="beauty",
        kinds=("shampoo", "lotion", "soap", "lip balm", "sunscreen"),
        attributes=(
            "sulfate free", "paraben free", "cruelty free", "plant based", "fragrance free", "sensitive skin",
            "dermatologist tested", "long lasting", "alcohol free", "travel friendly",
        ),
        options=(
            ("scent", ("lavender", "mint", "citrus", "coconut", "rose")),
            ("volume", ("50 ml", "100 ml", "250 ml", "500 ml")),
        ),
        dollars=(4, 45),
    ),
    Department(
        name="food",
        kinds=("coffee", "tea", "cereal", "chocolate", "crackers"),
        attributes=(
            "gluten free", "sugar free", "organic", "fair trade", "low sodium", "high protein", "keto friendly",
            "dairy free", "whole grain", "non gmo",
        ),
        options=(
            ("flavor", ("vanilla", "caramel", "hazelnut", "cinnamon", "original")),
            ("pack", ("pack of 1", "pack of 3", "pack of 6", "pack of 12")),
        ),
        dollars=(3, 60),
    ),
    Department(
        name="garden",
        kinds=("planter", "hose", "shovel", "bench", "lantern"),
        attributes=(
            "weather resistant", "rust proof", "lightweight", "heavy duty", "solar powered", "self watering",
            "ergonomic grip", "uv protected", "recycled", "frost proof",
        ),
        options=(("color", COLORS), ("length", ("1 m", "2 m", "3 m", "5 m"))),
        dollars=(8, 140),
    ),
)  # fmt: skip
