/*-------------------------------------------------------------------------
 *
 * file_kind.c
 *	  etl_test_file: a destination with tables, columns and generations in a
 *	  folder, which tests read.
 *
 *	 <directory>/calls					one line a call
 *	 <directory>/<relid>.<generation>/columns	attnum, generation, name, type
 *	 <directory>/<relid>.<generation>/rows		one JSON object a row, in order
 *	 <directory>/<relid>.<generation>/encoded	the same rows as they came, each
 *												after its length; read_back()
 *	 <directory>/<relid>.current		the published generation
 *	 <directory>/fault					what tests want to go wrong
 *
 * A line of "fault" is "<call> <status>"; that call then has that outcome.
 * "send reject <text>" refuses the first row of a batch that has the text,
 * "send refuse <text>" refuses such a batch without saying which row it was.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "fmgr.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "row.h"

struct EtlConnection
{
	const char *directory;
	MemoryContext scratch;		/* reset with each batch */
	EtlResult	sent;			/* outcome of the batch under way */
};

static const EtlOptionDef file_options[] = {
	{
		.name = "directory",
		.type = ETL_OPTION_TEXT,
		.flags = ETL_SCOPE_SERVER | ETL_OPTION_REQUIRED | ETL_OPTION_SUPERUSER,
		.comment = "Folder of the destination."
	},
	{
		.name = "read_back",
		.type = ETL_OPTION_BOOL,
		.flags = ETL_SCOPE_SERVER,
		.default_value = "off",
		.comment = "Whether the destination tells what it has."
	},
	{.name = NULL}
};

static const struct
{
	const char *name;
	EtlStatus	status;
	int			sqlstate;
}			statuses[] = {
	{"retry", ETL_RETRY, ERRCODE_CONNECTION_FAILURE},
	{"rejected", ETL_REJECTED, ERRCODE_DATA_EXCEPTION},
	{"too_large", ETL_TOO_LARGE, ERRCODE_PROGRAM_LIMIT_EXCEEDED},
	{"endpoint", ETL_ENDPOINT, ERRCODE_INVALID_PASSWORD},
	{"park", ETL_PARK, ERRCODE_FDW_ERROR},
	{"fatal", ETL_FATAL, ERRCODE_FDW_ERROR},
};

static void
append(const char *path, const char *text)
{
	FILE	   *file = AllocateFile(path, "a");

	if (file == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	fputs(text, file);
	FreeFile(file);
}

static char *
read_text(const char *path)
{
	FILE	   *file = AllocateFile(path, "r");
	StringInfoData text;
	char		buffer[4096];
	size_t		n;

	initStringInfo(&text);
	if (file != NULL)
	{
		while ((n = fread(buffer, 1, sizeof(buffer), file)) > 0)
			appendBinaryStringInfo(&text, buffer, n);
		FreeFile(file);
	}
	return text.data;
}

/* Path of the table's folder, or of a file in it. */
static char *
table_path(EtlConnection *connection, const EtlTable *table, const char *file)
{
	return psprintf("%s/%u.%u%s%s", connection->directory, table->relid,
					table->generation, file ? "/" : "", file ? file : "");
}

static void
make_folder(EtlConnection *connection, const EtlTable *table)
{
	char	   *path = table_path(connection, table, NULL);

	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m", path)));
	unlink(table_path(connection, table, "rows"));
	unlink(table_path(connection, table, "encoded"));
	append(table_path(connection, table, "rows"), "");
}

/* The rest of the line of "fault" that begins with "call ", or NULL. */
static char *
fault_of(EtlConnection *connection, const char *call)
{
	char	   *text = read_text(psprintf("%s/fault", connection->directory));
	size_t		len = strlen(call);

	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
		if (strncmp(line, call, len) == 0 && line[len] == ' ')
			return line + len + 1;
	return NULL;
}

/* Note the call, and set its outcome: what "fault" says, else done. */
static bool
begin_call(EtlConnection *connection, const char *call, const EtlTable *table,
		   const char *more, EtlResult *result)
{
	char	   *fault = fault_of(connection, call);

	append(psprintf("%s/calls", connection->directory),
		   table ? psprintf("%s %s.%s %u%s\n", call, table->shape->schema_name,
							table->shape->table_name, table->generation, more) :
		   psprintf("%s%s\n", call, more));
	result->status = ETL_DONE;
	for (int i = 0; fault != NULL && i < lengthof(statuses); i++)
	{
		if (strcmp(fault, statuses[i].name) != 0)
			continue;
		etl_result_set(result, statuses[i].status, statuses[i].sqlstate,
					   "the test wants %s to end so: %s", call, fault);
		result->rejected = -1;
		result->retry_after = -1;
	}
	return result->status == ETL_DONE;
}

static const char *
file_map_column(const EtlShape *shape, const EtlColumn *column,
				const EtlOptions *options, EtlValueError *error)
{
	return column->nullable ? psprintf("maybe %s", column->type_name) :
		pstrdup(column->type_name);
}

static EtlConnection *
file_open(const EtlConnectArgs *args)
{
	EtlConnection *connection = palloc0(sizeof(EtlConnection));

	connection->directory = pstrdup(etl_option_text(args->options, "directory"));
	connection->scratch = AllocSetContextCreate(CurrentMemoryContext, "etl_test file",
												ALLOCSET_DEFAULT_SIZES);
	return connection;
}

static void
file_connect(EtlConnection *connection, EtlResult *result)
{
	(void) begin_call(connection, "connect", NULL, "", result);
}

static void
file_close(EtlConnection *connection)
{
}

static void
append_row(const EtlTable *table, const EtlItem *item, StringInfo out)
{
	static const char *const operations[] = {"", "insert", "update", "delete"};
	RowHead		head;

	row_head(item->data, &head);
	appendStringInfo(out, "{\"op\": \"%s\", \"copied\": %s, \"epoch\": %u, \"lsn\": \"%016llx\","
					 " \"ordinal\": %llu, \"sub\": %u, \"row\": ",
					 operations[head.op], head.phase == ETL_PHASE_COPY ? "true" : "false",
					 head.position.epoch, (unsigned long long) head.position.commit_lsn,
					 (unsigned long long) head.position.ordinal, head.position.sub);
	row_json(table->shape, item->data, item->len, false, out);
	appendStringInfoString(out, "}\n");
}

/* Index of the first row that has the text, or -1. */
static int
find_row(EtlBatch *batch, const char *text)
{
	StringInfoData row;

	initStringInfo(&row);
	for (int i = 0; i < batch->nitems; i++)
	{
		if (batch->items[i].flags & ETL_ITEM_EVENT)
			continue;
		resetStringInfo(&row);
		append_row(batch->table, &batch->items[i], &row);
		if (strstr(row.data, text) != NULL)
			return i;
	}
	return -1;
}

static void
append_encoded(const char *path, const EtlBatch *batch)
{
	FILE	   *file = AllocateFile(path, "a");

	if (file == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	for (int i = 0; i < batch->nitems; i++)
	{
		const EtlItem *item = &batch->items[i];

		if (item->flags & ETL_ITEM_EVENT)
			continue;
		fwrite(&item->len, sizeof(item->len), 1, file);
		fwrite(item->data, 1, item->len, file);
	}
	FreeFile(file);
}

static void
write_batch(EtlConnection *connection, EtlBatch *batch)
{
	char	   *fault = fault_of(connection, "send");
	EtlResult  *result = &connection->sent;
	StringInfoData out;

	memset(result, 0, sizeof(EtlResult));
	if (!begin_call(connection, "send", batch->table,
					psprintf(" items %d attempt %d", batch->nitems, batch->attempt), result))
		return;
	if (fault != NULL &&
		(strncmp(fault, "reject ", 7) == 0 || strncmp(fault, "refuse ", 7) == 0))
	{
		int			row = find_row(batch, fault + 7);

		if (row >= 0)
		{
			etl_result_set(result, ETL_REJECTED, ERRCODE_DATA_EXCEPTION, "the test wants no such row");
			result->rejected = fault[2] == 'j' ? row : -1;
			return;
		}
	}

	initStringInfo(&out);
	for (int i = 0; i < batch->nitems; i++)
		if (!(batch->items[i].flags & ETL_ITEM_EVENT))
			append_row(batch->table, &batch->items[i], &out);
	append(table_path(connection, batch->table, "rows"), out.data);
	append_encoded(table_path(connection, batch->table, "encoded"), batch);
}

static void
file_send_start(EtlConnection *connection, EtlBatch *batch)
{
	MemoryContext old;

	MemoryContextReset(connection->scratch);
	old = MemoryContextSwitchTo(connection->scratch);
	write_batch(connection, batch);
	MemoryContextSwitchTo(old);
}

static void
file_send_poll(EtlConnection *connection, int timeout)
{
}

static void
file_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result)
{
	*result = connection->sent;
}

static void
file_send_finish(EtlConnection *connection, EtlBatch *batch)
{
}

/* Columns of the table become those of "shape". */
static void
write_columns(EtlConnection *connection, const EtlTable *table, const EtlShape *shape)
{
	char	   *path = table_path(connection, table, "columns");
	StringInfoData out;

	initStringInfo(&out);
	for (int i = 0; i < shape->ncolumns; i++)
		appendStringInfo(&out, "%d\t%u\t%s\t%s\n", shape->columns[i].attnum, table->generation,
						 shape->columns[i].name,
						 file_map_column(shape, &shape->columns[i], NULL, NULL));
	unlink(path);
	append(path, out.data);
}

static void
file_begin_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	if (!begin_call(connection, "begin_generation", table, "", result))
		return;
	make_folder(connection, table);
	write_columns(connection, table, table->shape);
}

static void
file_end_copy(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	(void) begin_call(connection, "end_copy", table, "", result);
}

static void
file_publish_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	char	   *path = psprintf("%s/%u.current", connection->directory, table->relid);

	if (!begin_call(connection, "publish_generation", table, "", result))
		return;
	unlink(path);
	append(path, psprintf("%u\n", table->generation));
}

static void
remove_table(EtlConnection *connection, const EtlTable *table)
{
	unlink(table_path(connection, table, "rows"));
	unlink(table_path(connection, table, "columns"));
	rmdir(table_path(connection, table, NULL));
}

static void
file_abandon_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	if (begin_call(connection, "abandon_generation", table, "", result))
		remove_table(connection, table);
}

static void
file_drop_table(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	if (!begin_call(connection, "drop_table", table, "", result))
		return;
	remove_table(connection, table);
	unlink(psprintf("%s/%u.current", connection->directory, table->relid));
}

static EtlTarget *
file_read_columns(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	EtlTarget  *target = palloc0(sizeof(EtlTarget));
	char	   *text;
	char	   *line;
	char	   *rest;

	target->name = psprintf("%u.%u", table->relid, table->generation);
	if (!begin_call(connection, "read_columns", table, "", result))
		return target;
	text = read_text(table_path(connection, table, "columns"));
	target->columns = palloc0(sizeof(EtlTargetColumn) * (strlen(text) / 4 + 1));
	for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
	{
		EtlTargetColumn *column = &target->columns[target->ncolumns++];
		char	   *field;

		column->attnum = atoi(strtok_r(line, "\t", &field));
		column->generation = atoi(strtok_r(NULL, "\t", &field));
		column->name = strtok_r(NULL, "\t", &field);
		column->type = strtok_r(NULL, "\t", &field);
	}
	return target;
}

static void
file_ensure_shape(EtlConnection *connection, EtlTable *table, const EtlShape *shape,
				  EtlResult *result)
{
	if (begin_call(connection, "ensure_shape", table, psprintf(" version %u", shape->version), result))
		write_columns(connection, table, shape);
}

static void
file_truncate(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	if (!begin_call(connection, "truncate", table, "", result))
		return;
	append(table_path(connection, table, "rows"), "{\"op\": \"truncate\"}\n");
	unlink(table_path(connection, table, "encoded"));
}

static void
file_maintain(EtlConnection *connection, const char *action, EtlResult *result)
{
	(void) begin_call(connection, "maintain", NULL, psprintf(" %s", action), result);
}

static uint32
file_table_abilities(const EtlOptions *options)
{
	return ETL_HAS_SCHEMAS | ETL_SPLIT_KEY_CHANGE |
		(etl_option_bool(options, "read_back") ? ETL_CAN_READ_BACK : 0);
}

/* Have two encoded rows the same key? */
static bool
same_key(const EtlShape *shape, const char *a, uint32 a_len, const char *b, uint32 b_len)
{
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const char *x;
		const char *y;
		uint32		x_len;
		uint32		y_len;

		if (shape->columns[i].key_position == 0)
			continue;
		if (!row_extract(NULL, a, a_len, shape->columns[i].attnum, &x, &x_len) ||
			!row_extract(NULL, b, b_len, shape->columns[i].attnum, &y, &y_len) ||
			x_len != y_len || memcmp(x, y, x_len) != 0)
			return false;
	}
	return true;
}

/* The newest row of that key, NULL if there is none or it was deleted. */
static const char *
find_encoded(const EtlTable *table, StringInfo rows, const EtlItem *wanted, uint32 *len)
{
	const char *newest = NULL;
	const char *p = rows->data;

	while (p < rows->data + rows->len)
	{
		uint32		size;
		RowHead		head;

		memcpy(&size, p, sizeof(size));
		p += sizeof(size);
		row_head(p, &head);
		if (same_key(table->shape, wanted->data, wanted->len, p, size))
		{
			newest = head.op == ETL_DELETE ? NULL : p;
			*len = size;
		}
		p += size;
	}
	return newest;
}

static void
file_read_back(EtlConnection *connection, EtlTable *table, int nrows, const EtlItem *rows,
			   int ncolumns, const AttrNumber *attnums,
			   void (*found) (void *arg, int row, EtlPosition version,
							  const char *const *values, const uint32 *lens),
			   void *arg, EtlResult *result)
{
	FILE	   *file;
	StringInfoData encoded;
	char		buffer[4096];
	size_t		n;

	if (!begin_call(connection, "read_back", table, psprintf(" rows %d", nrows), result))
		return;
	initStringInfo(&encoded);
	file = AllocateFile(table_path(connection, table, "encoded"), "r");
	if (file != NULL)
	{
		while ((n = fread(buffer, 1, sizeof(buffer), file)) > 0)
			appendBinaryStringInfo(&encoded, buffer, n);
		FreeFile(file);
	}
	for (int i = 0; i < nrows; i++)
	{
		uint32		len;
		const char *row = find_encoded(table, &encoded, &rows[i], &len);
		const char **values = palloc0(sizeof(char *) * Max(ncolumns, 1));
		uint32	   *lens = palloc0(sizeof(uint32) * Max(ncolumns, 1));
		RowHead		head;

		if (row == NULL)
			continue;
		for (int j = 0; j < ncolumns; j++)
			if (!row_extract(NULL, row, len, attnums[j], &values[j], &lens[j]))
				values[j] = NULL;
		row_head(row, &head);
		found(arg, i, head.position, values, lens);
	}
}

static const EtlDestinationRoutine file_routine = {
	.magic = ETL_DESTINATION_MAGIC,
	.version = ETL_DESTINATION_VERSION,
	.size = sizeof(EtlDestinationRoutine),
	.kind = "test_file",
	.abilities = ETL_HAS_SCHEMAS | ETL_SPLIT_KEY_CHANGE,
	.max_batch_size = -1,
	.max_batch_events = -1,
	.max_batch_delay = -1,
	.options = file_options,
	.map_column = file_map_column,
	.codec_create = row_codec_create,
	.encode_row = row_encode,
	.extract = row_extract,
	.splice = row_splice,
	.open = file_open,
	.connect = file_connect,
	.close = file_close,
	.send_start = file_send_start,
	.send_poll = file_send_poll,
	.send_result = file_send_result,
	.send_finish = file_send_finish,
	.begin_generation = file_begin_generation,
	.end_copy = file_end_copy,
	.publish_generation = file_publish_generation,
	.abandon_generation = file_abandon_generation,
	.read_columns = file_read_columns,
	.ensure_shape = file_ensure_shape,
	.truncate = file_truncate,
	.maintain = file_maintain,
	.drop_table = file_drop_table,
	.read_back = file_read_back,
	.table_abilities = file_table_abilities,
};

PG_FUNCTION_INFO_V1(etl_test_file_handler);

Datum
etl_test_file_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&file_routine);
}
