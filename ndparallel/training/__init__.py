"""What one rank holds and does in a step: buckets and shards, a replica, pipeline stages."""
