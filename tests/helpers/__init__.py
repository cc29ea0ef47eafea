"""What several test modules share: tiny models, data on disk, servers."""
