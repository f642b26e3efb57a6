# etl: replicate published tables from inside the server
#
#	make && make install	build and install into the server of PG_CONFIG
#	make check				everything that CI checks, in build/ (nothing is
#							installed into the system)
#	make test T=...			some of the tests, e.g. T="test_events.py -k copy"
#	make check-long			what does not fit into the time of make check
#	make bench				the speed of the data path against the server's own
#	make demo				a shop kept up to date in ClickHouse, step by step
MODULE_big = etl
EXTENSION = etl
DATA = etl--1.0.sql
PGFILEDESC = "etl - replication of published tables to destinations"
HEADERS_etl = include/etl/destination.h

# The directory of this file: set before PGXS sets it, for the wildcards below.
etl_dir := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))
etl_src := $(wildcard $(addprefix $(etl_dir)/,src/*.c src/*/*.c src/*/*/*.c))
etl_hdr := $(wildcard $(addprefix $(etl_dir)/,include/etl/*.h src/*.h src/*/*.h src/*/*/*.h))
OBJS = $(patsubst $(etl_dir)/%.c,%.o,$(etl_src))

PG_CPPFLAGS = -I$(srcdir)/include -I$(srcdir)/src
PG_CFLAGS = -Wall -Wextra -Wmissing-prototypes -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
SHLIB_LINK = -lcurl -lzstd -llz4 -lz -lcrypto

# make installcheck: the SQL surface, against a running server that has etl
# in shared_preload_libraries and wal_level = logical.
REGRESS = $(patsubst $(etl_dir)/sql/%.sql,%,$(filter-out %/unloaded.sql,$(wildcard $(etl_dir)/sql/*.sql)))
REGRESS_OPTS = --inputdir=$(etl_dir)

PG_CONFIG ?= pg_config

# The rest needs no server tree: make check installs what is missing first.
etl_own := check check-long test bench demo
ifneq (,$(filter $(etl_own),$(MAKECMDGOALS)))

.PHONY: $(etl_own)

check:
	@$(etl_dir)/tools/check

check-long:
	@ETL_LONG=1 $(etl_dir)/tools/check

test:
	@$(etl_dir)/tools/check --only-tests $(T)

bench:
	@$(etl_dir)/tools/check --only-bench $(T)

demo:
	@$(etl_dir)/tools/check --only-demo $(T)

else

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS knows neither folders of an out-of-tree build nor headers.
$(shell mkdir -p $(sort $(dir $(OBJS))))
$(OBJS): $(etl_hdr)

endif
