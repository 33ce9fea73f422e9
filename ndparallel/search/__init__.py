"""All plans of a cluster: their bounds, the fastest of them, advice, scaling, what if."""
