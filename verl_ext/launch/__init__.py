"""One job on this machine: how its processes are started, watched and ended, and what they leave behind."""
