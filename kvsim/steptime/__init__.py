"""How long one forward pass takes: models, GPUs, step-time models, KV capacity.

The ground floor of kvsim: nothing here knows the scheduler or the cache. ``load_model`` and ``load_gpu`` turn
a name or a file into numbers, a :class:`~kvsim.steptime.base.StepTimeModel` turns a batch into nanoseconds,
and ``estimate_num_gpu_blocks`` says how many KV blocks vLLM would allocate.
"""
