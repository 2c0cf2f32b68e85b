import sys

from reprise.cli import main

sys.exit(main())
