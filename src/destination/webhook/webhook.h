/*-------------------------------------------------------------------------
 *
 * webhook.h
 *	  What the parts of the webhook destination share.
 *
 * A decoding process writes complete event objects (event.c, row.c); the
 * writer joins them to bodies as they are (request.c) and sends them
 * (send.c).  So a batch can be halved, retried and cut down to one event
 * without encoding anything again.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_WEBHOOK_H
#define ETL_WEBHOOK_H

#include "etl/destination.h"
#include "format/json.h"
#include "net/http.h"

typedef enum WebhookFormat
{
	WEBHOOK_PLAIN,
	WEBHOOK_NDJSON,
	WEBHOOK_CLOUDEVENTS
} WebhookFormat;

/* Kinds of events, in the order of webhook_event_names[]. */
typedef enum WebhookEvent
{
	WEBHOOK_BEGIN,
	WEBHOOK_INSERT,
	WEBHOOK_UPDATE,
	WEBHOOK_DELETE,
	WEBHOOK_TRUNCATE,
	WEBHOOK_COMMIT,
	WEBHOOK_RELATION,
	WEBHOOK_COPY_BEGIN,
	WEBHOOK_COPY_END
} WebhookEvent;

#define WEBHOOK_NEVENTS (WEBHOOK_COPY_END + 1)

extern const char *const webhook_event_names[];

/* --- webhook.c --- */

extern WebhookFormat webhook_format(const EtlOptions *options);
extern bool webhook_wants(const EtlOptions *options, WebhookEvent event);
extern EtlJsonOptions webhook_json_options(const EtlOptions *options, const char *column);

/* --- event.c --- */

/* The parts of an event that are the same for a whole transaction or copy. */
typedef struct WebhookOrigin
{
	StringInfoData source;		/* "/etl/..." with quotes */
	StringInfoData time;		/* without quotes */
	StringInfoData before;		/* ,"source":... to "tx_ordinal": */
	StringInfoData after;		/* ,"timestamp":... to the xid */
} WebhookOrigin;

/* Kept until another origin is asked for. */
extern const WebhookOrigin *webhook_origin(const EtlOrigin *origin);

#define WEBHOOK_ID_LEN		96

/* Append 16 hexadecimal digits. */
extern char *webhook_hex(char *buf, uint64 value);

/* "<16 digits>/<16 digits>", 33 bytes and the end. */
extern void webhook_sequence(char *buf, XLogRecPtr lsn, uint64 ordinal);

/* ,"table":{...} */
extern void webhook_table(StringInfo out, const EtlShape *shape);

/*
 * Envelope of a CloudEvent up to and with "data":.  "shape", "sequence" and
 * "partition" (UTF-8, unescaped) may be NULL.
 */
extern void webhook_envelope(StringInfo out, const EtlOrigin *origin, const char *event, const char *id,
							 const EtlShape *shape, const char *subject, const char *sequence,
							 const StringInfoData *partition);

/* dataschema and subject, as they stand in an envelope */
extern void webhook_subject(StringInfo out, const EtlShape *shape);

extern void webhook_encode_begin(const EtlOptions *options, const EtlOrigin *origin, StringInfo out);
extern void webhook_encode_commit(const EtlOptions *options, const EtlOrigin *origin,
								  uint64 ordinal, StringInfo out);
extern void webhook_encode_relation(const EtlOptions *options, const EtlOrigin *origin,
									const EtlShape *shape, const EtlShape *previous, StringInfo out);
extern void webhook_encode_truncate(const EtlOptions *options, const EtlOrigin *origin,
									uint64 ordinal, int nshapes, const EtlShape *const *shapes,
									bool cascade, bool restart_identity, StringInfo out);
extern void webhook_encode_copy_begin(const EtlOptions *options, const EtlOrigin *origin,
									  const EtlShape *shape, const char *reason, StringInfo out);
extern void webhook_encode_copy_end(const EtlOptions *options, const EtlOrigin *origin,
									const EtlShape *shape, uint64 rows, StringInfo out);

/* --- row.c --- */

typedef struct WebhookColumn
{
	AttrNumber	attnum;
	int16		key_position;
	bool		toastable;
	char	   *member;			/* ,"name": */
	int			member_len;
	EtlJsonCodec *codec;
} WebhookColumn;

struct EtlCodec
{
	MemoryContext context;
	WebhookFormat format;
	bool		wanted[WEBHOOK_NEVENTS];
	const EtlShape *shape;
	StringInfoData table;		/* ,"table":{...} */
	StringInfoData subject;
	int			ncolumns;
	WebhookColumn *columns;		/* by attnum */
	int			nkeys;
	WebhookColumn **keys;		/* by place in the key */

	/* of the copy that the last row was of */
	uint32		copy;
	StringInfoData copy_id;		/* <epoch>/copy/<oid>/<copy>/ */
	StringInfoData copy_end;	/* ,"copy":<copy> */

	/* used by one encode call at a time */
	StringInfoData key;
	StringInfoData other_key;
	StringInfoData missing;		/* names, joined by commas */
};

extern void webhook_describe_column(const EtlShape *shape, const EtlColumn *column,
									const EtlOptions *options, EtlColumnPlan *plan);
extern EtlCodec *webhook_codec_create(const EtlShape *shape, const EtlTarget *target,
									  const EtlOptions *options);
extern bool webhook_encode_row(EtlCodec *codec, const EtlChange *change, StringInfo out,
							   EtlValueError *error);

/* --- partial.c --- */

extern bool webhook_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
							const char **value, uint32 *value_len);
extern bool webhook_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
						   const AttrNumber *attnums, const char *const *values,
						   const uint32 *value_lens, StringInfo out);

/* --- request.c --- */

typedef struct WebhookSecrets
{
	char	   *secret;			/* NULL: nothing is signed */
	char	   *previous;
	char	   *password;
} WebhookSecrets;

/* One request's body and what does not change over its retries. */
typedef struct WebhookBody
{
	char	   *id;				/* of the batch: webhook-id */
	int			nspans;
	EtlSpan    *spans;
} WebhookBody;

/* Both in CurrentMemoryContext. */
extern void webhook_body(WebhookBody *body, WebhookFormat format, int64 pipeline_id,
						 const EtlBatch *batch);
extern List *webhook_headers(const WebhookBody *body, WebhookFormat format, const char *pipeline,
							 List *fixed, const WebhookSecrets *secrets, int64 now);

/* Option "headers" as a list of "Name: value"; ERROR 22023 on a bad one. */
extern List *webhook_static_headers(const EtlOptions *options);

/* Read secrets anew, files included; false with "result" filled on trouble. */
extern bool webhook_read_secrets(const EtlOptions *options, WebhookSecrets *secrets, EtlResult *result);

/* --- send.c --- */

extern EtlConnection *webhook_open(const EtlConnectArgs *args);
extern void webhook_connect(EtlConnection *connection, EtlResult *result);
extern void webhook_close(EtlConnection *connection);
extern void webhook_send_start(EtlConnection *connection, EtlBatch *batch);
extern void webhook_send_poll(EtlConnection *connection, int timeout);
extern void webhook_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result);
extern void webhook_send_finish(EtlConnection *connection, EtlBatch *batch);

#endif							/* ETL_WEBHOOK_H */
