"""`python -m ndparallel.book`: check what the documents say."""

import sys

from ndparallel.book.check import main

sys.exit(main())
