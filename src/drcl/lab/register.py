"""Your own methods, benchmarks, data sets and networks, from your own file.

    @register.method                                    a dataclass derived from drcl.lab.methods.Method
    @register.benchmark("my-benchmark", data=..., ...)  the function that cuts its tasks from the data set
    @register.data("my-data", "what it shows")          the function that reads it
    @register.network("my-network")                     a torch.nn.Module that makes features of images

``--plugin mine.py`` loads such a file, ``--plugin my_module`` a module. ``plugins = ["mine.py"]`` in the file of a
sweep or a run does the same. Installed packages use entry points, in the groups ``drcl.methods``, ``drcl.benchmarks``,
``drcl.data`` and ``drcl.networks``. CONTRIBUTING.md has a complete example.
"""

from drcl.lab.benchmarks import register as benchmark
from drcl.lab.common.plugins import PluginError
from drcl.lab.data.registry import data_set as data
from drcl.lab.methods import register as method
from drcl.lab.networks import register as network

__all__ = ["PluginError", "benchmark", "data", "method", "network"]
