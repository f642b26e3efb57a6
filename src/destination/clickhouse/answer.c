/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  What the answers of ClickHouse mean.
 *
 * An exception has a number.  That decides, not the HTTP status, which
 * versions set differently:
 *
 *	 the moment			 busy, too many parts, a part of a cluster is away,
 *						 a query that somebody killed: the same again later
 *	 the endpoint		 credentials, rights, the database: nobody's row
 *	 the rows			 an INSERT that cannot be read: bisected
 *	 the table			 it is gone, not what it was, or cannot be made like
 *						 that: parked
 *
 * What is about a statement or a table, and would be the same each time, must
 * not be among those of the moment: it would be tried for ever, and the slot
 * would keep all WAL from there on.
 *
 * An answer without a number was not given by ClickHouse, or not for a
 * statement: then the general classes of HTTP hold, but no row is blamed.
 * An exception may also come behind a status of 200, in the body.
 *
 * Messages of the server quote the values that it could not read, and the
 * query that it could not run, in which are the keys of rows.  Only those
 * about DDL are passed on; of all others number and name.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"

/* Waiting for merges is a matter of seconds. */
#define TOO_MANY_PARTS_WAIT 2000

#define TOO_MANY_PARTS	252
#define UNKNOWN_SETTING	115

/* Of what cannot be made: tables are as their options say. */
#define OPTIONS_HINT \
	"Check the table's options: destination_type, order_by, partition_by, table_settings."

typedef struct Class
{
	int			code;
	EtlStatus	status;			/* of DDL and reads */
	EtlStatus	insert;			/* of an INSERT */
	int			sqlstate;
	bool		ddl;			/* the hint is also one for DDL */
	const char *hint;
} Class;

#define LATER(code) \
	{code, ETL_RETRY, ETL_RETRY, ERRCODE_FDW_UNABLE_TO_CREATE_EXECUTION, false, NULL}
#define ROWS(code) \
	{code, ETL_PARK, ETL_REJECTED, ERRCODE_DATA_EXCEPTION, false, \
		"Perhaps the table at the destination was altered; etl.retry_table() makes it again."}
#define TABLE(code, sqlstate, ddl) \
	{code, ETL_PARK, ETL_PARK, sqlstate, ddl, \
		"If somebody else has changed or dropped the table at the destination, etl.retry_table() makes it again."}
#define MADE(code) \
	{code, ETL_PARK, ETL_REJECTED, ERRCODE_FDW_ERROR, false, \
		"Perhaps the table at the destination was altered; etl.retry_table() makes it again."}
#define KEPT(code, sqlstate, hint) \
	{code, ETL_PARK, ETL_PARK, sqlstate, true, hint}
#define LOGIN(code) \
	{code, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_INVALID_PASSWORD, false, \
		"Check user and password in the user mapping of the pipeline's owner."}
#define RIGHTS(code) \
	{code, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_INSUFFICIENT_PRIVILEGE, false, \
		"The user needs SELECT, INSERT, ALTER, CREATE and DROP of tables and views in the database."}

static const Class classes[] = {
	LATER(159),					/* TIMEOUT_EXCEEDED */
	LATER(160),					/* TOO_SLOW */
	LATER(201),					/* QUOTA_EXCEEDED */
	LATER(202),					/* TOO_MANY_SIMULTANEOUS_QUERIES */
	LATER(203),					/* NO_FREE_CONNECTION */
	LATER(209),					/* SOCKET_TIMEOUT */
	LATER(210),					/* NETWORK_ERROR */
	LATER(216),					/* QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING */
	LATER(218),					/* TABLE_IS_DROPPED */
	LATER(225),					/* NO_ZOOKEEPER */
	LATER(236),					/* ABORTED */
	LATER(241),					/* MEMORY_LIMIT_EXCEEDED */
	LATER(242),					/* TABLE_IS_READ_ONLY */
	LATER(243),					/* NOT_ENOUGH_SPACE */
	LATER(TOO_MANY_PARTS),
	LATER(279),					/* ALL_CONNECTION_TRIES_FAILED */
	LATER(285),					/* TOO_FEW_LIVE_REPLICAS */
	LATER(286),					/* UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE */
	LATER(289),					/* REPLICA_IS_NOT_IN_QUORUM */
	LATER(305),					/* TABLE_WAS_NOT_DROPPED */
	LATER(319),					/* UNKNOWN_STATUS_OF_INSERT */
	LATER(394),					/* QUERY_WAS_CANCELLED */
	LATER(425),					/* SYSTEM_ERROR */
	LATER(439),					/* CANNOT_SCHEDULE_TASK */
	LATER(473),					/* DEADLOCK_AVOIDED */
	LATER(499),					/* S3_ERROR */
	LATER(517),					/* CANNOT_ASSIGN_ALTER */
	LATER(571),					/* DATABASE_REPLICATION_FAILED */
	LATER(722),					/* ASYNC_LOAD_WAIT_FAILED */
	LATER(735),					/* QUERY_WAS_CANCELLED_BY_CLIENT */
	LATER(745),					/* SERVER_OVERLOADED */
	LATER(999),					/* KEEPER_EXCEPTION */
	LATER(1000),				/* POCO_EXCEPTION */
	LATER(1001),				/* STD_EXCEPTION */
	LATER(1002),				/* UNKNOWN_EXCEPTION */
	ROWS(6),					/* CANNOT_PARSE_TEXT */
	ROWS(25),					/* CANNOT_PARSE_ESCAPE_SEQUENCE */
	ROWS(26),					/* CANNOT_PARSE_QUOTED_STRING */
	ROWS(27),					/* CANNOT_PARSE_INPUT_ASSERTION_FAILED */
	ROWS(32),					/* ATTEMPT_TO_READ_AFTER_EOF */
	ROWS(33),					/* CANNOT_READ_ALL_DATA */
	ROWS(38),					/* CANNOT_PARSE_DATE */
	ROWS(41),					/* CANNOT_PARSE_DATETIME */
	ROWS(53),					/* TYPE_MISMATCH */
	ROWS(69),					/* ARGUMENT_OUT_OF_BOUND */
	ROWS(70),					/* CANNOT_CONVERT_TYPE */
	ROWS(72),					/* CANNOT_PARSE_NUMBER */
	ROWS(117),					/* INCORRECT_DATA */
	ROWS(120),					/* CANNOT_INSERT_VALUE_OF_DIFFERENT_SIZE_INTO_TUPLE */
	ROWS(128),					/* TOO_LARGE_ARRAY_SIZE */
	ROWS(130),					/* CANNOT_READ_ARRAY_FROM_TEXT */
	ROWS(131),					/* TOO_LARGE_STRING_SIZE */
	ROWS(153),					/* ILLEGAL_DIVISION */
	ROWS(190),					/* SIZES_OF_ARRAYS_DONT_MATCH */
	ROWS(321),					/* VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE */
	ROWS(376),					/* CANNOT_PARSE_UUID */
	ROWS(395),					/* FUNCTION_THROW_IF_VALUE_IS_NON_ZERO */
	ROWS(407),					/* DECIMAL_OVERFLOW */
	ROWS(467),					/* CANNOT_PARSE_BOOL */
	ROWS(469),					/* VIOLATED_CONSTRAINT */
	ROWS(691),					/* UNKNOWN_ELEMENT_OF_ENUM */
	TABLE(7, ERRCODE_UNDEFINED_COLUMN, false),	/* INCORRECT_NUMBER_OF_COLUMNS */
	TABLE(8, ERRCODE_UNDEFINED_COLUMN, false),	/* THERE_IS_NO_COLUMN */
	TABLE(10, ERRCODE_UNDEFINED_COLUMN, false), /* NOT_FOUND_COLUMN_IN_BLOCK */
	TABLE(16, ERRCODE_UNDEFINED_COLUMN, false), /* NO_SUCH_COLUMN_IN_TABLE */
	TABLE(20, ERRCODE_UNDEFINED_COLUMN, false), /* NUMBER_OF_COLUMNS_DOESNT_MATCH */
	TABLE(44, ERRCODE_FDW_ERROR, false),	/* ILLEGAL_COLUMN */
	TABLE(47, ERRCODE_UNDEFINED_COLUMN, false), /* UNKNOWN_IDENTIFIER */
	TABLE(CH_UNKNOWN_TABLE, ERRCODE_UNDEFINED_TABLE, true),
	TABLE(122, ERRCODE_FDW_ERROR, false),	/* INCOMPATIBLE_COLUMNS */
	TABLE(349, ERRCODE_NOT_NULL_VIOLATION, false),	/* CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN */
	MADE(15),					/* DUPLICATE_COLUMN */
	MADE(36),					/* BAD_ARGUMENTS */
	MADE(42),					/* NUMBER_OF_ARGUMENTS_DOESNT_MATCH */
	MADE(43),					/* ILLEGAL_TYPE_OF_ARGUMENT */
	MADE(46),					/* UNKNOWN_FUNCTION */
	MADE(50),					/* UNKNOWN_TYPE */
	MADE(59),					/* ILLEGAL_TYPE_OF_COLUMN_FOR_FILTER */
	MADE(62),					/* SYNTAX_ERROR */
	MADE(63),					/* UNKNOWN_AGGREGATE_FUNCTION */
	MADE(80),					/* INCORRECT_QUERY */
	MADE(161),					/* TOO_MANY_COLUMNS */
	MADE(167),					/* TOO_DEEP_AST */
	MADE(168),					/* TOO_BIG_AST */
	MADE(169),					/* BAD_TYPE_OF_FIELD */
	MADE(170),					/* BAD_GET */
	MADE(184),					/* ILLEGAL_AGGREGATION */
	MADE(223),					/* UNEXPECTED_AST_STRUCTURE */
	MADE(229),					/* QUERY_IS_TOO_LARGE */
	MADE(248),					/* INVALID_PARTITION_VALUE */
	MADE(344),					/* SUPPORT_IS_DISABLED */
	MADE(370),					/* DATA_TYPE_CANNOT_BE_USED_IN_TABLES */
	MADE(377),					/* ILLEGAL_SYNTAX_FOR_DATA_TYPE */
	MADE(378),					/* DATA_TYPE_CANNOT_HAVE_ARGUMENTS */
	MADE(386),					/* NO_COMMON_TYPE */
	MADE(427),					/* CANNOT_COMPILE_REGEXP */
	MADE(432),					/* UNKNOWN_CODEC */
	MADE(433),					/* ILLEGAL_CODEC_PARAMETER */
	MADE(446),					/* FUNCTION_NOT_ALLOWED */
	MADE(450),					/* BAD_TTL_EXPRESSION */
	MADE(455),					/* SUSPICIOUS_TYPE_FOR_LOW_CARDINALITY */
	MADE(471),					/* INVALID_SETTING_VALUE */
	MADE(478),					/* UNKNOWN_POLICY */
	MADE(479),					/* UNKNOWN_DISK */
	MADE(527),					/* NO_SUITABLE_FUNCTION_IMPLEMENTATION */
	MADE(549),					/* DATA_TYPE_CANNOT_BE_USED_IN_KEY */
	MADE(703),					/* INVALID_IDENTIFIER */
	MADE(721),					/* DEPRECATED_FUNCTION */
	KEPT(57, ERRCODE_DUPLICATE_TABLE,	/* TABLE_ALREADY_EXISTS */
		 "Somebody else's table has the name: rename or drop it there, then call etl.retry_table()."),
	KEPT(CH_TOO_LARGE_TO_DROP, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
		 "Drop the table there, or raise max_table_size_to_drop of the server, then call etl.retry_table()."),
	KEPT(630, ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST,	/* HAVE_DEPENDENT_OBJECTS */
		 "Drop there what depends on the table, then call etl.retry_table()."),
	LOGIN(192),					/* UNKNOWN_USER */
	LOGIN(193),					/* WRONG_PASSWORD */
	LOGIN(194),					/* REQUIRED_PASSWORD */
	LOGIN(195),					/* IP_ADDRESS_NOT_ALLOWED */
	LOGIN(511),					/* UNKNOWN_ROLE */
	LOGIN(512),					/* SET_NON_GRANTED_ROLE */
	LOGIN(516),					/* AUTHENTICATION_FAILED */
	RIGHTS(164),				/* READONLY */
	RIGHTS(291),				/* DATABASE_ACCESS_DENIED */
	RIGHTS(497),				/* ACCESS_DENIED */
	{81, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_UNDEFINED_DATABASE, false, /* UNKNOWN_DATABASE */
	"Create the database at ClickHouse, or change option database of the server."},
	{UNKNOWN_SETTING, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_FEATURE_NOT_SUPPORTED, false,
	"ClickHouse 23.5 or newer is needed."},
	{48, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_FEATURE_NOT_SUPPORTED, false,	/* NOT_IMPLEMENTED */
	"Use a database with engine Atomic."},
	{452, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_INSUFFICIENT_PRIVILEGE, false,	/* SETTING_CONSTRAINT_VIOLATION */
	"The user's profile forbids a setting that is sent along; relax its constraints."},
};

/* ----------
 * Answers
 * ----------
 */

static bool
has_bytes(const char *data, Size len, const char *text)
{
	Size		wanted = strlen(text);

	for (Size i = 0; i + wanted <= len; i++)
		if (data[i] == text[0] && memcmp(data + i, text, wanted) == 0)
			return true;
	return false;
}

/* Newer servers frame an exception in a body with a word of the answer's header. */
static const char *
find_frame(const char *data, Size len, const char *tag)
{
	static const char word[] = "__exception__\r\n";
	Size		word_len = sizeof(word) - 1;
	Size		tag_len = strlen(tag);

	for (Size i = 0; i + word_len + tag_len <= len; i++)
		if (data[i] == word[0] && memcmp(data + i, word, word_len) == 0 &&
			memcmp(data + i + word_len, tag, tag_len) == 0)
			return data + i;
	return NULL;
}

/*
 * Where the exception is in the body of an answer, NULL if there is none.
 * Behind a status of 200 it is framed, or, from older servers, all there is.
 * Data may have any bytes, so both are looked for where they stand.
 */
static const char *
find_exception(const EtlHttpResponse *response)
{
	const char *data = response->raw_body;
	const char *tag;
	const char *frame;

	if (data == NULL || response->body == NULL)
		return NULL;
	if (response->status != 200)
		return response->body;
	if (response->raw_body_len > 6 && memcmp(data, "Code: ", 6) == 0 &&
		has_bytes(data, Min(response->raw_body_len, 200), "Exception: "))
		return response->body;
	tag = response->header(response, "X-ClickHouse-Exception-Tag");
	if (tag == NULL || tag[0] == '\0')
		return NULL;
	frame = find_frame(data, response->raw_body_len, tag);
	return frame ? response->body + (frame - data) : NULL;
}

/* Number of the exception, 0 for none. */
static int
exception_code(const EtlHttpResponse *response)
{
	const char *header = response->header(response, "X-ClickHouse-Exception-Code");
	const char *found;
	int			code;

	if (header && (code = atoi(header)) > 0)
		return code;
	found = find_exception(response);
	found = found ? strstr(found, "Code: ") : NULL;
	return found && (code = atoi(found + 6)) > 0 ? code : 0;
}

/*
 * The name in "Code: 60. DB::Exception: text. (NAME) (version 1)".  The text
 * may have anything in it, so only the last one will do, and none of a body
 * that was cut.
 */
static void
copy_name(const EtlHttpResponse *response, const char *text, char *out, Size size)
{
	const char *version = NULL;
	const char *name;
	const char *at = text;

	while ((at = strstr(at, ") (version ")) != NULL)
		version = at++;
	if (version == NULL || response->truncated)
		return;
	for (name = version; name > text; name--)
		if (!((name[-1] >= 'A' && name[-1] <= 'Z') || (name[-1] >= '0' && name[-1] <= '9') ||
			  name[-1] == '_'))
			break;
	if (name > text && name[-1] == '(' && name < version)
		snprintf(out, size, " (%.*s)", (int) (version - name), name);
}

/* What is said of the exception behind its number. */
static void
copy_text(const EtlHttpResponse *response, bool name_only, char *out, Size size)
{
	const char *begin = find_exception(response);
	const char *end;
	int			room = (int) size - 3;

	out[0] = '\0';
	begin = begin ? strstr(begin, "Exception: ") : NULL;
	if (begin == NULL)
		return;
	begin += strlen("Exception: ");
	if (name_only)
	{
		copy_name(response, begin, out, size);
		return;
	}
	end = strstr(begin, " (version ");
	if (end == NULL)
		end = begin + strcspn(begin, "\n");
	snprintf(out, size, ": %.*s", pg_mbcliplen(begin, (int) (end - begin), room), begin);
	for (char *p = out; *p; p++)
		if (*p == '\n' || *p == '\t' || *p == '\r')
			*p = ' ';
}

static const Class *
class_of(int code)
{
	for (int i = 0; i < lengthof(classes); i++)
		if (classes[i].code == code)
			return &classes[i];
	return NULL;
}

int
ch_classify(const EtlHttpResponse *response, ChKind kind, EtlResult *result)
{
	const Class *class;
	EtlStatus	status;
	char		text[300];
	int			code;

	memset(result, 0, sizeof(*result));
	result->rejected = -1;
	result->retry_after = -1;
	if (response->outcome != ETL_HTTP_ANSWERED)
	{
		etl_http_classify(response, result);
		return 0;
	}
	code = exception_code(response);
	if (code == 0)
	{
		etl_http_classify(response, result);
		if (result->status == ETL_REJECTED || result->status == ETL_FATAL)
			result->status = ETL_ENDPOINT;
		if (result->status == ETL_ENDPOINT && !result->hint[0])
			strlcpy(result->hint, "Check whether the URL is that of ClickHouse's HTTP interface.",
					sizeof(result->hint));
		return 0;
	}

	class = class_of(code);
	if (code == UNKNOWN_SETTING && kind == CH_CHANGE)
		status = ETL_PARK;		/* one of the table's */
	else if (class)
		status = kind == CH_INSERT ? class->insert : class->status;
	else if (response->status == 401 || response->status == 403)
		status = ETL_ENDPOINT;
	else if (response->status >= 500 || response->status == 200)
		status = ETL_RETRY;
	else
		status = kind == CH_INSERT ? ETL_REJECTED : ETL_PARK;
	copy_text(response, kind != CH_CHANGE, text, sizeof(text));
	etl_result_set(result, status, class ? class->sqlstate : ERRCODE_FDW_ERROR,
				   "ClickHouse reports error %d%s", code, text);
	result->rejected = -1;
	result->retry_after = response->retry_after;
	if (code == TOO_MANY_PARTS && result->retry_after < TOO_MANY_PARTS_WAIT)
		result->retry_after = TOO_MANY_PARTS_WAIT;
	if (status == ETL_PARK && kind == CH_CHANGE && !(class && class->ddl))
		strlcpy(result->hint, OPTIONS_HINT, sizeof(result->hint));
	else if (class && class->hint)
		strlcpy(result->hint, class->hint, sizeof(result->hint));
	return code;
}
