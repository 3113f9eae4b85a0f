"""DataProto: what moves between the parts of a training run.

Promises: a batch is columns of one length, tensors in `batch` and numpy arrays in `non_tensor_batch`, no name in both;
`meta_info` belongs to the batch as a whole. Whatever does not fit together is a `DataError` that names the column, and
after an error nothing has changed. Rows, dtypes and shapes survive every verb and every save exactly. Nothing is ever
pickled here. torch and tensordict are imported only where a tensor is involved.

What it does not do: it pads no sequences (`windrow.rollout.batching` does, once), it sends nothing and shards nothing.
"""

from windrow.protocol.data import DataProto, DataProtoItem, Padded

__all__ = ["DataProto", "DataProtoItem", "Padded"]
