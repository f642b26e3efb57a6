"""Sample values of every type, and what they are in JSON.

SAMPLES has input texts by type name (format_type()): an ordinary value and
extreme ones.  A type that has no samples is named in NO_INPUT with its
reason, so that a new type of a later server is noticed.
"""

SAMPLES = {
    "boolean": ["true", "false"],
    "bytea": [r"\xdeadbeef00", r"\x", r"\x" + "ff" * 300],
    '"char"': ["x", '"', ""],
    "name": ["orders", "n" * 63, 'a"b\\c'],
    "smallint": ["7", "-32768", "32767"],
    "integer": ["42", "-2147483648", "2147483647"],
    "bigint": ["9007199254740993", "-9223372036854775808", "9223372036854775807"],
    "oid": ["16402", "0", "4294967295"],
    "regproc": ["pg_catalog.now", "-", "0"],
    "regprocedure": ["abs(integer)", "-", "0"],
    "regoper": ["pg_catalog.||/", "0", "0"],
    "regoperator": ["+(integer,integer)", "0", "0"],
    "regclass": ["pg_class", "-", "4294967295"],
    "regtype": ["integer", "-", "4294967295"],
    "regconfig": ["simple", "-", "4294967295"],
    "regdictionary": ["simple", "-", "4294967295"],
    "regnamespace": ["pg_catalog", "-", "4294967295"],
    "regrole": ["pg_monitor", "-", "4294967295"],
    "regcollation": ['"C"', "-", "4294967295"],
    "text": ["a", "", 'tab\there\nnl\\back\r\x01\x7f"', "é\u0301\U0001f600\ufeff\U0010ffff", "x" * 5000],
    "character varying": ["a", "", "NULL", "\\N", '{"a":1}'],
    "character(6)": ["ab", "", "abcdef"],
    "tid": ["(1,2)", "(0,0)", "(4294967295,65535)"],
    "xid": ["734", "0", "4294967295"],
    "xid8": ["734", "0", "18446744073709551615"],
    "cid": ["3", "0", "4294967295"],
    "json": ['{"a":1e400}', '{"a" : 1,\n "a":2,\r\n\t"b":[ ]}', "null", ' "s" ', '"\\u00e9\\u0000"'],
    "jsonb": ['{"a": 1, "b": [1, null, "x"]}', '{"v":18446744073709551616,"w":0.1234567890123456789}', "null",
              '"\\"\\n\\u0001"', "[]"],
    "jsonpath": ["$.a", '$."k 2"[*] ? (@ > 1)', "$"],
    "xml": ["<a>b</a>", "x &lt; y", ""],
    "point": ["(1,2)", "(-1e308,1e-300)", "(NaN,Infinity)"],
    "lseg": ["[(1,2),(3,4)]", "[(0,0),(0,0)]", "[(1e10,2),(3,4.5)]"],
    "path": ["((1,2),(3,4))", "[(1,2),(3,4)]", "[(0,0)]"],
    "box": ["(3,4),(1,2)", "(0,0),(0,0)", "(1e10,2),(3,4.5)"],
    "polygon": ["((1,2),(3,4),(5,6))", "((0,0))", "((1e10,2),(3,4.5))"],
    "line": ["{1,2,3}", "{0,1,0}", "{1e10,-1,2.5}"],
    "circle": ["<(1,2),3>", "<(0,0),0>", "<(1e10,2),3.5>"],
    "cidr": ["10.0.0.0/8", "::/0", "192.168.1.1/32"],
    "inet": ["10.1.2.3/8", "::1", "255.255.255.255"],
    "macaddr": ["08:00:2b:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08:00:2b:01:02:03:04:05", "00:00:00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff:ff:ff"],
    "real": ["0.1", "-3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity", "-0"],
    "double precision": ["0.30000000000000004", "-1.7976931348623157e308", "5e-324", "NaN", "Infinity",
                         "-Infinity", "1e20", "-0"],
    "numeric": ["12.30", "NaN", "-" + "1234567890" * 30 + "." + "1234567890" * 30, "Infinity", "-Infinity",
                "7000.00", "1e20", "0"],
    "numeric(12,2)": ["12.30", "-9999999999.99", "NaN", "0"],
    "numeric(5,-2)": ["12345", "-99999", "0"],
    "money": ["1234.50", "-92233720368547758.08", "92233720368547758.07", "-0.05", "0"],
    "date": ["2026-11-30", "0044-03-15 BC", "infinity", "-infinity", "12345-01-01", "4713-01-01 BC", "5874897-12-31"],
    "time without time zone": ["03:50:27.123456", "24:00:00", "00:00:00"],
    "time with time zone": ["04:05:06.789+05:30", "24:00:00+05:30", "00:00:00-15:59:59", "00:00:00+00", "12:00:00-08"],
    "timestamp without time zone": ["2026-11-30 03:50:27.12", "infinity", "-infinity", "4713-01-01 00:00:00 BC",
                                    "294276-12-31 23:59:59.999999"],
    "timestamp with time zone": ["2026-11-30 03:50:27.123456+00", "infinity", "-infinity",
                                 "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"],
    "interval": ["1 year 2 mons 3 days 04:05:06.000007", "-178000000 years", "1 mon -1 day", "-00:00:00.5", "0"],
    "bit(3)": ["101", "000", "111"],
    "bit varying": ["101", "", "10" * 40],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000",
             "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "refcursor": ["c", "", 'a"b'],
    "aclitem": ["postgres=r/postgres", "=arwdDxt/postgres", "pg_monitor=r*/postgres"],
    "int2vector": ["1 2", "-32768 32767", "5"],
    "oidvector": ["1 2", "4294967295 0", "5"],
    "pg_lsn": ["0/16B3800", "0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:", "10:9223372036854775807:"],
    "txid_snapshot": ["10:20:10,14,15", "1:1:", "10:9223372036854775807:"],
    "tsvector": ["'a':1A 'b c':2", "", "'q''uote':16383"],
    "tsquery": ["'a' & 'b':*A", "", "!'a' <-> 'b'"],
    "int4range": ["[1,5)", "empty", "(,)", "[-2147483648,2147483647)"],
    "int8range": ["[1,5)", "empty", "(,)"],
    "numrange": ["[1.10,5)", "empty", "[-Infinity,NaN]"],
    "daterange": ["[2026-11-30,2026-12-01)", "empty", "[-infinity,infinity)"],
    "tsrange": ['["2026-11-30 03:50:27","2026-12-01 00:00:00.5")', "empty", "[-infinity,infinity]"],
    "tstzrange": ['["2026-11-30 03:50:27+00","2026-12-01 00:00:00.5+00")', "empty", "(,infinity]"],
    "int4multirange": ["{[1,5),[7,9)}", "{}", "{(,)}"],
    "int8multirange": ["{[1,5),[7,9)}", "{}", "{(,)}"],
    "nummultirange": ["{[1.10,5),[7,9]}", "{}", "{(,)}"],
    "datemultirange": ["{[2026-11-30,2026-12-01)}", "{}", "{(,)}"],
    "tsmultirange": ['{["2026-11-30 03:50:27","2026-12-01 00:00:00")}', "{}", "{(,)}"],
    "tstzmultirange": ['{["2026-11-30 03:50:27+00","2026-12-01 00:00:00+00")}', "{}", "{(,)}"],
    "public.hstore": ['a=>NULL, "k 2"=>"v\\"x\\\\", ""=>""', "", "a=>1"],
    "public.citext": ["MiXed", "", 'a"b'],
    "public.ltree": ["Top.Science.Astro", "", "a"],
    "public.lquery": ["Top.*{1,2}.!a@", "a", "*"],
    "public.ltxtquery": ["Astro & !b", "a", "a | b*"],
    "public.mood": ["so, so", "", "sad"],
    "public.tree": ["(1,x,\"{1.10,2}\",)", "(,,,)", '(-5,"q\\"u,o",{},"(2,"" "")")'],
    "public.leaf": ["(2,y)", "(,)", '(3," ")'],
    "public.money_range": ["[1,5)", "empty", "(,)"],
    "public.money_multirange": ["{[1,5)}", "{}", "{(,)}"],
    "public.positive": ["1", "2147483647", "17"],
    "public.price": ["12.30", "99999999.99", "0"],
    "public.price_nested": ["12.30", "99999999.99", "0"],
    "public.mail": ["Ann@Example.org", "", "b"],
    "public.bits": ["101", "", "10101010"],
    "public.numbers": ["{1,2}", "{}", "{{1,NULL},{3,4}}"],
    "public.leaf_domain": ["(2,y)", "(,)", "(3,z)"],
    "information_schema.cardinal_number": ["1", "0", "2147483647"],
    "information_schema.character_data": ["a", "", "b"],
    "information_schema.sql_identifier": ["a", "", "b"],
    "information_schema.time_stamp": ["2026-11-30 03:50:27.12+00", "2000-01-01 00:00+00", "1999-12-31 23:59:59+00"],
    "information_schema.yes_or_no": ["YES", "NO", "YES"],
}

# The name that format_type() gives without a modifier, and what is used instead.
WITH_MODIFIER = {
    "character": "character(6)",
    "bit": "bit(3)",
}

NO_INPUT = {
    "pg_node_tree": "no input function",
    "pg_ndistinct": "no input function",
    "pg_dependencies": "no input function",
    "pg_mcv_list": "no input function",
    "pg_brin_bloom_summary": "no input function",
    "pg_brin_minmax_multi_summary": "no input function",
    "gtsvector": "index entries, no input function",
    "public.ghstore": "index entries, no input function",
    "public.ltree_gist": "index entries, no input function",
}

# Types of the tests' own.
DEFINITIONS = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'so, so', '');
CREATE TYPE leaf AS (a int, "b x" text);
CREATE TYPE tree AS (a int, "q""u" text, n numeric[], l leaf);
CREATE TYPE money_range AS RANGE (subtype = numeric, multirange_type_name = money_multirange);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN price_nested AS price CHECK (value >= 0);
CREATE DOMAIN mail AS citext;
CREATE DOMAIN bits AS varbit(8);
CREATE DOMAIN numbers AS int[];
CREATE DOMAIN leaf_domain AS leaf;
"""

# Base types, enums, domains, ranges and composites; arrays follow from them.
WALK = """
SELECT format_type(t.oid, NULL)
  FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
 WHERE t.typisdefined AND t.typtype IN ('b', 'd', 'e', 'r', 'm', 'c') AND t.typcategory <> 'A'
   AND (t.typtype <> 'c' OR c.relkind = 'c' AND c.relnamespace = 'public'::regnamespace)
 ORDER BY t.oid
"""
