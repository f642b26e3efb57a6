# etl: replicate published tables from inside the server
MODULE_big = etl
EXTENSION = etl
DATA = etl--1.0.sql
PGFILEDESC = "etl - replication of published tables to destinations"
HEADERS_etl = include/etl/destination.h

OBJS = $(patsubst %.c,%.o,$(wildcard src/*.c src/*/*.c src/*/*/*.c))

PG_CPPFLAGS = -I$(srcdir)/include -I$(srcdir)/src
PG_CFLAGS = -Wall -Wextra -Wmissing-prototypes -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
SHLIB_LINK = -lcurl -lzstd -llz4 -lz -lcrypto

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
