"""Sets of placement tasks: to train on, held out, and fixed for comparisons.

sampling      tables split into training and held-out tables; tasks drawn from either
fixed_model   tasks of one model whose tables are all known, and of its variants
reference     fixed tasks on which all versions of one topology are measured
"""
