/*-------------------------------------------------------------------------
 *
 * option_parse.c
 *	  From what users write to values in normal form, and what they may set.
 *
 * Options of servers and user mappings are text, those of pipelines and
 * tables are JSON.  Every error here is the user's (22023, 42501) and tells
 * what would be right.  A secret's value never gets into a message.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/regproc.h"

#include "catalog/options.h"
#include "server/request.h"
#include "server/shmem.h"
#include "compat.h"

/* Names of HTTP headers that carry secrets, lower case. */
static const char *const secret_headers[] = {
	"authorization", "proxy-authorization", "cookie", "set-cookie",
	"x-api-key", "api-key", "apikey", "x-auth-token", "x-access-token",
	"x-amz-security-token", "x-goog-api-key", "x-functions-key",
	"private-token", "x-clickhouse-key"
};

/* Wrong value: message with the value unless it is a secret. */
static void
bad_value(const EtlOptionDef *def, const char *value, const char *hint)
{
	if ((def->flags & ETL_OPTION_SECRET) != 0 || value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\"", def->name),
				 hint ? errhint("%s", hint) : 0));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for option \"%s\": \"%s\"", def->name, value),
			 hint ? errhint("%s", hint) : 0));
}

static void
wrong_type(const EtlOptionDef *def, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("option \"%s\" must be %s", def->name, expected)));
}

/* Where an option can be set, for who tried somewhere else; NULL: nowhere. */
static char *
places_of_option(const EtlDestinationRoutine *routine, const char *name)
{
	static const struct
	{
		uint32		scope;
		const char *name;
	}			places[] = {
		{ETL_SCOPE_SERVER, "servers"},
		{ETL_SCOPE_MAPPING, "user mappings"},
		{ETL_SCOPE_PIPELINE, "pipelines"},
		{ETL_SCOPE_TABLE, "tables"},
		{ETL_SCOPE_COLUMN, "columns"}
	};
	StringInfoData result;

	initStringInfo(&result);
	for (int i = 0; i < lengthof(places); i++)
	{
		if (etl_option_find(routine, name, places[i].scope) != NULL)
			appendStringInfo(&result, "%s%s", result.len > 0 ? ", " : "", places[i].name);
	}
	return result.len > 0 ? result.data : NULL;
}

static void
unknown_option(const EtlDestinationRoutine *routine, const char *name, uint32 scope)
{
	char	   *names = etl_option_names(routine, scope);
	char	   *places = places_of_option(routine, name);

	if (places != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" cannot be set here", name),
				 errhint("It can be set on: %s.  Valid options here: %s.",
						 places, names[0] != '\0' ? names : "none")));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized option \"%s\"", name),
			 names[0] != '\0' ?
			 errhint("Valid options here: %s.", names) :
			 errhint("There are no valid options here.")));
}

static char *
parse_number(const EtlOptionDef *def, const char *value, int64 *number)
{
	const char *hint = NULL;
	int			flags = def->type == ETL_OPTION_SIZE ? GUC_UNIT_KB :
		def->type == ETL_OPTION_TIME ? GUC_UNIT_MS : 0;
	int			result;

	if (!parse_int(value, &result, flags, &hint))
		bad_value(def, value, hint);
	if (result < def->min || result > def->max)
	{
		const char *unit = etl_option_unit(def);

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d%s%s is outside the valid range for option \"%s\" (%lld .. %lld)",
						result, unit ? " " : "", unit ? unit : "", def->name,
						(long long) def->min, (long long) def->max)));
	}
	*number = result;
	return psprintf("%d", result);
}

Jsonb *
etl_option_json_in(const EtlOptionDef *def, const char *text)
{
	MemoryContext context = CurrentMemoryContext;
	Jsonb	   *volatile result = NULL;

	/*
	 * The parser's own message would quote the text, which may hold a secret.
	 * It is a pure function: nothing but memory is left behind by its ERROR.
	 */
	PG_TRY();
	{
		result = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (ERRCODE_TO_CATEGORY(code) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" is not valid JSON", def->name)));
	}
	PG_END_TRY();
	return result;
}

/* A JSON container in normal form after its shape was checked. */
static char *
check_container(const EtlOptionDef *def, Jsonb *value)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	item;

	if (def->type == ETL_OPTION_JSON)
	{
		if (!JB_ROOT_IS_OBJECT(value))
			wrong_type(def, "a JSON object");
		return JsonbToCString(NULL, &value->root, VARSIZE(value));
	}

	if (!JB_ROOT_IS_ARRAY(value) || JB_ROOT_IS_SCALAR(value))
		wrong_type(def, "a JSON array of strings");
	it = JsonbIteratorInit(&value->root);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token != WJB_ELEM)
			continue;
		if (item.type != jbvString)
			wrong_type(def, "a JSON array of strings");
		if (def->enumvals != NULL)
		{
			char	   *name = pnstrdup(item.val.string.val, item.val.string.len);
			const char *const *valid = def->enumvals;

			while (*valid != NULL && strcmp(*valid, name) != 0)
				valid++;
			if (*valid == NULL)
				bad_value(def, name, psprintf("Valid values: %s.", etl_option_enum_values(def)));
		}
	}
	return JsonbToCString(NULL, &value->root, VARSIZE(value));
}

char *
etl_option_parse_text(const EtlOptionDef *def, const char *value, int64 *number)
{
	bool		flag;

	*number = 0;
	switch (def->type)
	{
		case ETL_OPTION_BOOL:
			if (!parse_bool(value, &flag))
				bad_value(def, value, "Valid values: true, false.");
			*number = flag;
			return pstrdup(flag ? "true" : "false");
		case ETL_OPTION_INT:
		case ETL_OPTION_SIZE:
		case ETL_OPTION_TIME:
			return parse_number(def, value, number);
		case ETL_OPTION_ENUM:
			for (const char *const *valid = def->enumvals; *valid != NULL; valid++)
			{
				if (pg_strcasecmp(*valid, value) == 0)
					return pstrdup(*valid);
			}
			bad_value(def, value, psprintf("Valid values: %s.", etl_option_enum_values(def)));
			break;
		case ETL_OPTION_TEXT:
			if ((def->flags & ETL_OPTION_REQUIRED) != 0 && value[0] == '\0')
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("option \"%s\" must not be empty", def->name)));
			return pstrdup(value);
		case ETL_OPTION_LIST:
		case ETL_OPTION_JSON:
			return check_container(def, etl_option_json_in(def, value));
	}
	elog(ERROR, "unrecognized type of option \"%s\"", def->name);
	return NULL;				/* keep compilers quiet */
}

char *
etl_option_parse_json(const EtlOptionDef *def, JsonbValue *value, int64 *number)
{
	bool		numeric = def->type == ETL_OPTION_INT || def->type == ETL_OPTION_SIZE ||
		def->type == ETL_OPTION_TIME;

	*number = 0;
	switch (value->type)
	{
		case jbvString:
			if (def->type == ETL_OPTION_LIST)
				wrong_type(def, "a JSON array of strings");
			if (def->type == ETL_OPTION_JSON)
				wrong_type(def, "a JSON object");
			return etl_option_parse_text(def, pnstrdup(value->val.string.val, value->val.string.len), number);
		case jbvNumeric:
			if (numeric)
				return parse_number(def, DatumGetCString(DirectFunctionCall1(numeric_out,
																			 NumericGetDatum(value->val.numeric))),
									number);
			break;
		case jbvBool:
			if (def->type == ETL_OPTION_BOOL)
			{
				*number = value->val.boolean;
				return pstrdup(value->val.boolean ? "true" : "false");
			}
			break;
		case jbvBinary:
		case jbvArray:
		case jbvObject:
			if (def->type == ETL_OPTION_LIST || def->type == ETL_OPTION_JSON)
				return check_container(def, JsonbValueToJsonb(value));
			break;
		default:
			break;
	}

	wrong_type(def,
			   def->type == ETL_OPTION_BOOL ? "true or false" :
			   def->type == ETL_OPTION_SIZE ? "a number of kB or a string with a unit" :
			   def->type == ETL_OPTION_TIME ? "a number of ms or a string with a unit" :
			   def->type == ETL_OPTION_INT ? "a number" :
			   def->type == ETL_OPTION_LIST ? "a JSON array of strings" :
			   def->type == ETL_OPTION_JSON ? "a JSON object" : "a string");
	return NULL;				/* keep compilers quiet */
}

void
etl_option_check_privilege(const EtlOptionDef *def, Oid role)
{
	if ((def->flags & ETL_OPTION_SUPERUSER) != 0 && !superuser_arg(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set option \"%s\"", def->name),
				 errhint("Only superusers may set this option.")));
	if ((def->flags & ETL_OPTION_FILE) != 0 && !has_privs_of_role(role, ROLE_PG_READ_SERVER_FILES))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set option \"%s\"", def->name),
				 errhint("Only members of the role \"pg_read_server_files\" may name files of the server.")));
}

void
etl_options_check_json(const EtlDestinationRoutine *routine, Jsonb *options, uint32 scope)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	item;
	const EtlOptionDef *def = NULL;

	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be a JSON object"),
				 errhint("For example: {\"max_batch_size\": \"4MB\"}.")));

	it = JsonbIteratorInit(&options->root);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			char	   *name = pnstrdup(item.val.string.val, item.val.string.len);

			def = etl_option_find(routine, name, scope);
			if (def == NULL)
				unknown_option(routine, name, scope);
		}
		else if (token == WJB_VALUE && item.type != jbvNull)
		{
			int64		number;

			etl_option_parse_json(def, &item, &number);
			etl_option_check_privilege(def, GetUserId());
		}
	}
}

Jsonb *
etl_options_merge(Jsonb *old_options, Jsonb *new_options)
{
	Jsonb	   *joined = DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
															JsonbPGetDatum(old_options),
															JsonbPGetDatum(new_options)));
	JsonbParseState *state = NULL;
	JsonbIterator *it = JsonbIteratorInit(&joined->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	JsonbValue	key;
	JsonbValue *result;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			key = item;
		else if (token == WJB_VALUE && item.type != jbvNull)
		{
			pushJsonbValue(&state, WJB_KEY, &key);
			pushJsonbValue(&state, WJB_VALUE, &item);
		}
	}
	result = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(result);
}

/* ----------
 * Options of wrappers, servers and user mappings
 * ----------
 */

/* Everybody may read the options of a server: no password in its URL. */
static void
check_user_info(const EtlOptionDef *def, const char *url)
{
	const char *start = strstr(url, "://");
	size_t		len;

	start = start ? start + 3 : url;
	len = strcspn(start, "/?#\\");
	if (memchr(start, '@', len) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" must not contain a user name or password", def->name),
				 errhint("Options of servers are readable by everybody.  Set \"user\" and \"password\" or \"password_file\" in a user mapping.")));
}

static void
check_secret_headers(const EtlOptionDef *def, const char *text)
{
	Jsonb	   *headers = etl_option_json_in(def, text);
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbIteratorToken token;
	JsonbValue	item;

	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		char	   *name;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(item.val.string.val, item.val.string.len);
		for (int i = 0; i < lengthof(secret_headers); i++)
		{
			if (pg_strcasecmp(name, secret_headers[i]) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("header \"%s\" must not be in the options of a server", name),
						 errhint("Options of servers are readable by everybody.  Set option \"%s\" in a user mapping.", def->name)));
		}
	}
}

/* An option of a server, where "value" is in normal form. */
static void
check_server_option(const EtlOptionDef *def, const char *value)
{
	if (def->type == ETL_OPTION_TEXT &&
		(strcmp(def->name, "url") == 0 || strcmp(def->name, "proxy") == 0))
		check_user_info(def, value);
	if (def->type == ETL_OPTION_JSON && strcmp(def->name, "headers") == 0)
		check_secret_headers(def, value);
}

/* Wrappers have the one option that makes them ours. */
static void
validate_wrapper(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "etl_handler") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unrecognized option \"%s\"", option->defname),
					 errhint("Valid options here: %s.", "etl_handler")));
		if (!superuser())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to set option \"%s\"", option->defname),
					 errhint("Only superusers may set this option.")));
		if (list_length(etl_qualified_name(defGetString(option))) != 2)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for option \"%s\": \"%s\"", option->defname, defGetString(option)),
					 errhint("Name a function with its schema: schema.function.")));
	}
}

static void
check_required(const EtlDestinationRoutine *routine, List *options)
{
	ListCell   *lc;

	foreach(lc, etl_option_defs(routine, ETL_SCOPE_SERVER))
	{
		EtlOptionDef *def = lfirst(lc);
		ListCell   *lc2;
		bool		found = false;

		if ((def->flags & ETL_OPTION_REQUIRED) == 0)
			continue;
		foreach(lc2, options)
			found = found || strcmp(lfirst_node(DefElem, lc2)->defname, def->name) == 0;
		if (!found)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("option \"%s\" is required", def->name),
					 errhint("%s", def->comment)));
	}
}

void
etl_options_validate(const EtlDestinationRoutine *routine, Datum array, Oid catalog)
{
	List	   *list = untransformRelOptions(array);
	uint32		scope;
	EtlOptions *options;
	ListCell   *lc;

	if (catalog == ForeignDataWrapperRelationId)
	{
		validate_wrapper(list);
		return;
	}
	if (catalog == ForeignServerRelationId)
		scope = ETL_SCOPE_SERVER;
	else if (catalog == UserMappingRelationId)
		scope = ETL_SCOPE_MAPPING;
	else
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("foreign tables cannot be on a server that is a destination of etl"),
				 errhint("Use etl.create_pipeline() to send tables there.")));

	foreach(lc, list)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		const EtlOptionDef *def = etl_option_find(routine, option->defname, scope);
		char	   *value;
		int64		number;

		if (def == NULL)
			unknown_option(routine, option->defname, scope);
		value = etl_option_parse_text(def, defGetString(option), &number);
		etl_option_check_privilege(def, GetUserId());
		if (scope == ETL_SCOPE_SERVER)
			check_server_option(def, value);
	}
	if (scope == ETL_SCOPE_SERVER)
		check_required(routine, list);

	if (routine->validate_options != NULL)
	{
		options = etl_options_create(routine);
		etl_options_set_list(options, list,
							 scope == ETL_SCOPE_SERVER ? ETL_SOURCE_SERVER : ETL_SOURCE_MAPPING);
		routine->validate_options(options, scope);
	}

	/* pipelines that run with these options take the new ones at commit */
	if (etl_shared != NULL)
		etl_request_look();
}
