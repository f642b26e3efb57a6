/* What a sink needs to pass for ClickHouse. */
#ifndef BENCH_CLICKHOUSE_H
#define BENCH_CLICKHOUSE_H

#include <stddef.h>

extern const char *clickhouse_answer(const char *sql, size_t *len);

#endif
