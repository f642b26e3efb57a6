/*-------------------------------------------------------------------------
 *
 * http_options.h
 *	  Options that every kind of destination behind HTTP has.
 *
 * Use at the start of a kind's array:
 *
 *		static const EtlOptionDef options[] = {
 *			ETL_HTTP_OPTIONS("none", "60000"),
 *			... the kind's own ...
 *			{NULL}
 *		};
 *
 * The arguments are the kind's defaults of compression and request_timeout
 * (ms).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_HTTP_OPTIONS_H
#define ETL_HTTP_OPTIONS_H

#include "etl/destination.h"

extern const char *const etl_compression_values[];	/* registry.c */

#define ETL_HTTP_OPTIONS(default_compression, default_request_timeout) \
	{ \
		"url", ETL_OPTION_TEXT, ETL_SCOPE_SERVER | ETL_OPTION_REQUIRED, NULL, 0, 0, NULL, \
		"Address of the destination, http or https." \
	}, \
	{ \
		"connect_timeout", ETL_OPTION_TIME, ETL_SCOPE_SETTING | ETL_SCOPE_SERVER, "10000", 1, 24 * 60 * 60 * 1000, NULL, \
		"Longest time for connecting, TLS included." \
	}, \
	{ \
		"request_timeout", ETL_OPTION_TIME, ETL_SCOPE_SETTING | ETL_SCOPE_SERVER, default_request_timeout, 1, 24 * 60 * 60 * 1000, NULL, \
		"Longest time for one whole request." \
	}, \
	{ \
		"compression", ETL_OPTION_ENUM, ETL_SCOPE_SERVER | ETL_SCOPE_PIPELINE, default_compression, 0, 0, etl_compression_values, \
		"Compression of request bodies." \
	}, \
	{ \
		"ca_file", ETL_OPTION_TEXT, ETL_SCOPE_SERVER | ETL_OPTION_FILE, NULL, 0, 0, NULL, \
		"File with the certificates of trusted authorities instead of the system's." \
	}, \
	{ \
		"client_cert_file", ETL_OPTION_TEXT, ETL_SCOPE_SERVER | ETL_OPTION_FILE, NULL, 0, 0, NULL, \
		"File with the client's certificate." \
	}, \
	{ \
		"client_key_file", ETL_OPTION_TEXT, ETL_SCOPE_SERVER | ETL_OPTION_FILE, NULL, 0, 0, NULL, \
		"File with the key of the client's certificate." \
	}, \
	{ \
		"proxy", ETL_OPTION_TEXT, ETL_SCOPE_SERVER, NULL, 0, 0, NULL, \
		"HTTP proxy; the environment is ignored." \
	}, \
	{ \
		"user", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING, NULL, 0, 0, NULL, \
		"User name for the destination." \
	}, \
	{ \
		"password", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING | ETL_OPTION_SECRET, NULL, 0, 0, NULL, \
		"Password for the destination." \
	}, \
	{ \
		"password_file", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING | ETL_OPTION_FILE, NULL, 0, 0, NULL, \
		"File with the password, read at each connect." \
	}

#endif							/* ETL_HTTP_OPTIONS_H */
