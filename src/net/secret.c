/*-------------------------------------------------------------------------
 *
 * secret.c
 *	  Secrets that live in files of the server's host.
 *
 * Read at each connect, so that a secret can be changed by writing the file.
 * No transaction is needed and nothing throws: a missing file is trouble of
 * the endpoint, which lasts until someone puts it there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/fd.h"

#include "net/secret.h"

#define SECRET_FILE_MAX 65536

/* Content of the file in "buf"; -1 with errno set on trouble. */
static int
read_file(const char *path, char *buf, int size)
{
	int			fd = BasicOpenFile(path, O_RDONLY | O_NONBLOCK | PG_BINARY);
	struct stat st;
	int			total = 0;
	int			save_errno;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0)
		total = -1;
	else if (!S_ISREG(st.st_mode))
	{
		errno = EINVAL;
		total = -1;
	}
	while (total >= 0)
	{
		int			n = read(fd, buf + total, size - total);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			break;
		total = n < 0 ? -1 : total + n;
		if (total == size)
		{
			errno = EFBIG;
			total = -1;
		}
	}
	save_errno = errno;
	close(fd);
	errno = save_errno;
	return total;
}

List *
etl_secret_file(const char *path, EtlResult *result)
{
	char	   *buf = palloc(SECRET_FILE_MAX + 1);
	int			len = read_file(path, buf, SECRET_FILE_MAX);
	List	   *lines = NIL;
	char	   *line;
	char	   *rest;

	if (len < 0)
	{
		etl_result_set(result, ETL_ENDPOINT,
					   errno == ENOENT ? ERRCODE_UNDEFINED_FILE : ERRCODE_IO_ERROR,
					   "could not read file \"%s\": %s", path, strerror(errno));
		pfree(buf);
		return NIL;
	}
	buf[len] = '\0';
	for (line = strtok_r(buf, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest))
		lines = lappend(lines, pstrdup(line));
	explicit_bzero(buf, len);
	pfree(buf);
	if (lines == NIL)
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_INVALID_PARAMETER_VALUE,
					   "file \"%s\" is empty", path);
	return lines;
}
