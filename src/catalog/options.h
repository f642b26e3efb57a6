/*-------------------------------------------------------------------------
 *
 * options.h
 *	  Definitions of options, their values, and which scope wins.
 *
 * A definition (EtlOptionDef) says where an option may stand and what its
 * values look like.  General definitions are in option_defs.c; a kind of
 * destination adds its own in EtlDestinationRoutine.options.  A kind's
 * definition hides a general one of the same name.
 *
 * EtlOptions holds the values in force.  It is plain memory: once built, any
 * process may read it, also one that decodes.  Options that are also settings
 * follow the setting live as long as no narrower scope sets them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_OPTIONS_H
#define ETL_OPTIONS_H

#include "etl/destination.h"
#include "utils/jsonb.h"

/* Scope that a value comes from, widest first. */
typedef enum EtlOptionSource
{
	ETL_SOURCE_DEFAULT,
	ETL_SOURCE_SETTING,
	ETL_SOURCE_SERVER,
	ETL_SOURCE_MAPPING,
	ETL_SOURCE_PIPELINE,
	ETL_SOURCE_TABLE,
	ETL_SOURCE_COLUMN
} EtlOptionSource;

/* ---- option_defs.c ---- */

/*
 * Definition of "name" for this kind in one of "scopes" (ETL_SCOPE_ bits), or
 * NULL.  "routine" may be NULL: general definitions alone.
 */
extern const EtlOptionDef *etl_option_find(const EtlDestinationRoutine *routine,
										   const char *name, uint32 scopes);

/* All definitions for this kind in one of "scopes" (of const EtlOptionDef *). */
extern List *etl_option_defs(const EtlDestinationRoutine *routine, uint32 scopes);

/* "a, b, c": names valid for this kind in one of "scopes", sorted. */
extern char *etl_option_names(const EtlDestinationRoutine *routine, uint32 scopes);

/* "a, b, c": values of an enum. */
extern char *etl_option_enum_values(const EtlOptionDef *def);

/* The setting behind an option, if there is one that says something. */
extern bool etl_option_setting(const EtlOptionDef *def, int64 *value);

extern const char *etl_option_source_name(EtlOptionSource source);
extern const char *etl_option_unit(const EtlOptionDef *def);	/* or NULL */

/* ---- option_parse.c ---- */

/*
 * Value in normal form (base units, "true"/"false", canonical enum, JSON
 * text), palloc'd; *number for bool, int, size, time.  ERROR 22023 when it
 * cannot be; the value of a secret is not in the message.
 */
extern char *etl_option_parse_text(const EtlOptionDef *def, const char *value, int64 *number);
extern char *etl_option_parse_json(const EtlOptionDef *def, JsonbValue *value, int64 *number);

/*
 * Check a JSON object of options of one scope: known names, good values, and
 * what the caller may set.  NULL values ("back to default") are known names.
 */
extern void etl_options_check_json(const EtlDestinationRoutine *routine, Jsonb *options, uint32 scope);

/* "old" with the members of "new"; members that are null in "new" leave. */
extern Jsonb *etl_options_merge(Jsonb *old_options, Jsonb *new_options);

/* Like jsonb_in(), but ERROR 22023 without the text when malformed. */
extern Jsonb *etl_option_json_in(const EtlOptionDef *def, const char *text);

/* May the current user have this option set?  ERROR 42501 if not. */
extern void etl_option_check_privilege(const EtlOptionDef *def, Oid role);

/* ---- option_layout.c ---- */

/*
 * What decides how a table looks at the destination (ETL_OPTION_LAYOUT), as a
 * text to be stored with a generation; NULL: nothing does.
 */
extern char *etl_options_layout(const EtlOptions *options);

/*
 * "options" as they are for a generation of this shape that was made with this
 * layout, in CurrentMemoryContext; NULL when it looks the same with both.
 * Asks the kind's describe_column(), so types may be looked up.
 */
extern EtlOptions *etl_options_with_layout(const EtlOptions *options, const char *layout,
										   const EtlShape *shape);

/* ---- options.c ---- */

/* Everything at its default, in CurrentMemoryContext. */
extern EtlOptions *etl_options_create(const EtlDestinationRoutine *routine);
extern EtlOptions *etl_options_copy(const EtlOptions *options);

/* Take values of one scope (ERROR 22023); scopes must come widest first. */
extern void etl_options_set_list(EtlOptions *options, List *defelems, EtlOptionSource source);
extern void etl_options_set_json(EtlOptions *options, Jsonb *values, EtlOptionSource source);

/* Column name -> object of options (etl.table_option.columns). */
extern void etl_options_set_columns(EtlOptions *options, Jsonb *columns);

extern EtlOptionSource etl_option_source(const EtlOptions *options, const char *name);

/* ERROR 42501 if "role" may not use a file option that is set. */
extern void etl_options_check_files(const EtlOptions *options, Oid role);

/* Do scopes set the same in both?  (What follows a setting is not compared.) */
extern bool etl_options_equal(const EtlOptions *a, const EtlOptions *b);

#endif							/* ETL_OPTIONS_H */
