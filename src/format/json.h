/*-------------------------------------------------------------------------
 *
 * json.h
 *	  Values of PostgreSQL as JSON: to_json() with a few stated deviations.
 *
 * Works under historic and current catalogs alike: everything about a type is
 * looked up when a codec is made; afterwards only output functions are called.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_JSON_H
#define ETL_JSON_H

#include "etl/destination.h"

typedef struct EtlJsonOptions
{
	bool		int8_as_string;
	bool		numeric_as_number;
	bool		bytea_as_base64;
	bool		one_line;		/* raw CR and LF inside json become a space */
} EtlJsonOptions;

typedef struct EtlJsonCodec EtlJsonCodec;	/* one type */

/* How values of the type appear: "number", "string", "boolean", "json", "array", "object". */
extern const char *etl_json_kind(const EtlJsonCodec *codec);

/* Codec of a type in CurrentMemoryContext (recurses into domains, arrays, composites). */
extern EtlJsonCodec *etl_json_codec(Oid type, int32 typmod, const EtlJsonOptions *options);

/*
 * Append a non-null value.  The codec owns a scratch context that the call
 * resets; "out" may be in any context.  A SQL NULL is the caller's "null".
 * *deviated is set when an array with a lower bound other than 1 went out as
 * text.  Never detoasts an on-disk external datum (an Assert).
 */
extern void etl_json_value(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated);

/* Append "text" as a JSON string, quoted and escaped, UTF-8 (converted from the server's encoding). */
extern void etl_json_string(StringInfo out, const char *text);
extern void etl_json_string_len(StringInfo out, const char *text, int len);

/* The same of text that is UTF-8 already, as what the functions above have written is. */
extern void etl_json_quote(StringInfo out, const char *text, int len);

/*
 * Length of the JSON value at "json", white space around it included (for
 * walking our own rows); 0 if malformed.
 */
extern uint32 etl_json_skip(const char *json, uint32 len);

/*
 * Find a member of the JSON object at "json" by its encoded name (quotes
 * included).  Returns false if it is not there or the object is malformed.
 */
extern bool etl_json_member(const char *json, uint32 len, const char *name, uint32 name_len,
							const char **value, uint32 *value_len);

#endif							/* ETL_JSON_H */
