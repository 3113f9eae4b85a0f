"""What the tests of the store have in common."""

from pathlib import Path

from windrow.store.checkpoints import Checkpoint, Write


def parts(step: int) -> dict[str, Write]:
    """Small parts of the kinds that pipelines save, every file of which tells the step."""
    word = f"{step} ".encode()

    def model(path: Path) -> None:
        path.mkdir()
        (path / "config.json").write_bytes(word)
        (path / "nested").mkdir()
        (path / "nested" / "weights.bin").write_bytes(word * 100)

    def trainer(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(3):
                file.write(word)

    return {"model": model, "trainer.pt": trainer, "scheduler": lambda path: path.write_bytes(word * 10)}


def steps_told(checkpoint: Checkpoint) -> set[int]:
    """The steps that its files tell; one, unless something is mixed up."""
    files = ["model/config.json", "model/nested/weights.bin", "trainer.pt", "scheduler"]
    return {int(word) for name in files for word in (checkpoint.folder / name).read_bytes().split()}
