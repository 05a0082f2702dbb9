"""The bundled day of `finops demo`: a believable cluster, small enough to run on a laptop.

`bundle/` holds what people wrote down (events, deployments, policies), `tokens.parquet` what the gateway counted,
and `generate` makes what the exporters would have shown. `README.md` describes the day.
"""
