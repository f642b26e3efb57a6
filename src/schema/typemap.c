/*-------------------------------------------------------------------------
 *
 * typemap.c
 *	  What types of PostgreSQL become at a destination: the mechanism.
 *
 * Pure: options and shapes are plain memory, catalogs are not asked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "schema/typemap.h"

static const char *const policy_names[] = {
	[ETL_POLICY_ERROR] = "error",
	[ETL_POLICY_NULL] = "null",
	[ETL_POLICY_CLAMP] = "clamp",
	[ETL_POLICY_TEXT] = "text",
};

const EtlTypeRule *
etl_type_rule(const EtlTypeRule *rules, Oid source, int32 typmod, char kind, const char **type)
{
	for (const EtlTypeRule *rule = rules;; rule++)
	{
		if (OidIsValid(rule->source) ? rule->source != source :
			rule->kind != '\0' && rule->kind != kind)
			continue;
		*type = rule->make ? rule->make(typmod) : rule->type;
		if (*type != NULL)
			return rule;
	}
}

EtlValuePolicy
etl_value_policy(const EtlOptions *options, const char *column)
{
	const char *name = etl_option_column(options, column, "value_policy");

	for (int i = 0; name != NULL && i < lengthof(policy_names); i++)
		if (strcmp(name, policy_names[i]) == 0)
			return (EtlValuePolicy) i;
	return ETL_POLICY_ERROR;
}

const char *
etl_value_policy_name(EtlValuePolicy policy)
{
	return policy_names[policy];
}
