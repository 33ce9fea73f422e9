"""Wrong and slow answers to `make_it_fit`. The docstring of each is in what its reader is told."""


def too_large():
    """has 16.0 MB of memory"""
    return {"tp": 1, "pp": 1, "dp": 8, "zero": 3, "microbatches": 1, "schedule": "1f1b"}


def all_sharded():
    """). With zero 3 the buffers hold the weights and the gradients of a whole stage"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 3, "microbatches": 4, "schedule": "1f1b"}


def gradients_sharded():
    """With zero 2 the buffers hold gradients whole"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 2, "microbatches": 2, "schedule": "1f1b"}


def all_tp():
    """Which axis makes it?"""
    return {"tp": 8, "pp": 1, "dp": 1, "zero": 0, "microbatches": 4, "schedule": "1f1b"}


def a_bubble_is_left():
    """Which schedule leaves no bubble"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 4, "schedule": "1f1b"}


def a_deep_pipeline():
    """Its GPUs are idle for"""
    return {"tp": 2, "pp": 4, "dp": 1, "zero": 0, "microbatches": 8, "schedule": "zb-v"}


def more_tp_than_it_must():
    """Its GPUs compute for"""
    return {"tp": 4, "pp": 2, "dp": 1, "zero": 0, "microbatches": 8, "schedule": "zb-v"}


def wrong_number_of_gpus():
    """tp 2 x pp 2 x dp 4 is 16 GPUs: there are 8"""
    return {"tp": 2, "pp": 2, "dp": 4, "zero": 1, "microbatches": 2, "schedule": "1f1b"}


def forgets_the_schedule():
    """return a dict of tp, pp, dp, zero, microbatches, schedule"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 4}


def unknown_schedule():
    """unknown schedule"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 4, "schedule": "zbv"}


def a_stage_of_zero_that_there_is_not():
    """zero is 7, and should be a whole number from 0 to 3"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 7, "microbatches": 4, "schedule": "1f1b"}


def a_number_in_quotes():
    """tp is '2', and should be a whole number from 1 to 8"""
    return {"tp": "2", "pp": 2, "dp": 2, "zero": 1, "microbatches": 4, "schedule": "1f1b"}


def a_number_for_a_schedule():
    """schedule is 1, and should be a name"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 4, "schedule": 1}


def parts_that_cannot_be_equal():
    """with dp 2 a GPU has 4 sequences, which cannot be taken in 3 equal parts"""
    return {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "microbatches": 3, "schedule": "1f1b"}
