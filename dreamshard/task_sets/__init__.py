"""Sets of placement tasks: to train on, and held out.

sampling      tables split into training and held-out tables; tasks drawn from either
fixed_model   tasks of one model whose tables are all known, and of its variants
"""
