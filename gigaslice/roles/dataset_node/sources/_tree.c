/* SPDX-License-Identifier: Apache-2.0 */
/* gigaslice.roles.dataset_node.sources._tree: looks up many files of a directory, and reads a small file, each by one call
 * that gives up the interpreter's lock once. From Python each of these files costs two to five system calls that each
 * give the lock away and wait to get it back, which is most of what listing and reading cost, and what delays the other
 * threads of a fetch.
 *
 * What a result means is decided in Python (posix.py): what is no plain file is handed back with its mode, and so is
 * what this code has no numbers for. The types are those of _tree.pyi.
 *
 * Only the limited API is used, so one build serves Python 3.10 and all later ones.
 * Tests: tests/unit/gigaslice/roles/dataset_node/sources/test_tree.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    NAMES_BYTES = 32 << 10,  /* of a directory at a time, as the C library takes them */
    LOOK_UPS = 64,           /* of one call: how many network round trips an end of the walk waits for */
    SYS_OPENAT2_ANY = 437,   /* the same on every architecture; older headers lack it */
    OPEN_TRIES = 8,
    VERSION_BYTES = 2 * 20 + 2,
};
static const int64_t SECONDS_MOST = INT64_C(9000000000); /* beyond, nanoseconds do not fit into 64 bits */

/* What getdents64(2) writes. */
struct name_record {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

struct looked_up {
    const char *name;
    size_t name_bytes;
    struct stat status;
};

/* Whether the time of modification is one that this code has numbers for. */
static int usual_time(const struct stat *status)
{
    return status->st_mtim.tv_sec > -SECONDS_MOST && status->st_mtim.tv_sec < SECONDS_MOST;
}

static int64_t nanoseconds(const struct stat *status)
{
    return (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
}

/* Writes NUMBER in decimal to where it ends, END. Returns where it begins. */
static char *decimal_before(char *end, int64_t number)
{
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        *--end = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *--end = '-';
    return end;
}

/* The version of a file, "size:nanoseconds", at the end of TEXT. Returns where it begins. */
static const char *version_of(const struct stat *status, char text[VERSION_BYTES])
{
    char *at = decimal_before(text + VERSION_BYTES, nanoseconds(status));
    *--at = ':';
    return decimal_before(at, status->st_size);
}

static PyObject *read_names(PyObject *module, PyObject *args)
{
    (void)module;
    int directory;
    if (!PyArg_ParseTuple(args, "i", &directory))
        return NULL;
    uint64_t space[NAMES_BYTES / sizeof(uint64_t)];
    long size;
    Py_BEGIN_ALLOW_THREADS
    size = syscall(SYS_getdents64, directory, space, sizeof space);
    Py_END_ALLOW_THREADS
    if (size < 0 && errno != ENOENT) /* a directory that was removed has no names any more */
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBytes_FromStringAndSize((const char *)space, size < 0 ? 0 : size);
}

/* The name of the record at AT, and behind it the next record. Returns 0 where there is none. */
static int next_name(const char *names, Py_ssize_t size, Py_ssize_t *at, struct looked_up *found)
{
    const size_t head = offsetof(struct name_record, name);
    size_t left = (size_t)(size - *at);
    uint16_t length;
    if (left < head)
        return 0;
    memcpy(&length, names + *at + offsetof(struct name_record, length), sizeof length);
    if (length <= head || length > left)
        return 0;
    found->name = names + *at + head;
    const char *end = memchr(found->name, 0, length - head);
    if (end == NULL)
        return 0;
    found->name_bytes = (size_t)(end - found->name);
    *at += length;
    return 1;
}

static int is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
}

/* Looks up the next names, from *AT on. Returns how many, -1 with errno when one fails, -2 when NAMES is damaged. */
static int look_up_some(int directory, const char *names, Py_ssize_t size, Py_ssize_t *at,
                        struct looked_up found[LOOK_UPS])
{
    int count = 0;
    for (int tries = 0; *at < size && tries < LOOK_UPS; tries++) {
        struct looked_up *one = &found[count];
        if (!next_name(names, size, at, one))
            return -2;
        if (is_dots(one->name))
            continue;
        if (fstatat(directory, one->name, &one->status, AT_SYMLINK_NOFOLLOW) == 0)
            count++;
        else if (errno != ENOENT) /* removed since the directory was read: it is not in the dataset */
            return -1;
    }
    return count;
}

static PyObject *path_of(const char *prefix, Py_ssize_t prefix_bytes, const struct looked_up *one)
{
    PyObject *path = PyBytes_FromStringAndSize(NULL, prefix_bytes + (Py_ssize_t)one->name_bytes);
    if (path != NULL) {
        char *text = PyBytes_AsString(path);
        memcpy(text, prefix, (size_t)prefix_bytes);
        memcpy(text + prefix_bytes, one->name, one->name_bytes);
    }
    return path;
}

/* ENTRY(PATH, KIND, size, version, b"", executable), made as tuple.__new__ makes it; adds the bytes of its version to TEXT_BYTES. */
static PyObject *file_entry(PyTypeObject *entry, PyObject *path, PyObject *kind, const struct stat *status,
                            Py_ssize_t *text_bytes)
{
    char text[VERSION_BYTES];
    const char *version = version_of(status, text);
    *text_bytes += text + VERSION_BYTES - version;
    PyObject *made = ((allocfunc)PyType_GetSlot(entry, Py_tp_alloc))(entry, 6);
    PyObject *size = PyLong_FromLongLong(status->st_size);
    PyObject *words = PyUnicode_FromStringAndSize(version, text + VERSION_BYTES - version);
    PyObject *target = PyBytes_FromStringAndSize("", 0);
    if (made == NULL || size == NULL || words == NULL || target == NULL) {
        Py_XDECREF(made);
        Py_XDECREF(size);
        Py_XDECREF(words);
        Py_XDECREF(target);
        return NULL;
    }
    PyObject *executable = PyBool_FromLong((status->st_mode & S_IXUSR) != 0); /* cannot fail: one of two objects */
    Py_INCREF(path);
    Py_INCREF(kind);
    PyTuple_SetItem(made, 0, path);
    PyTuple_SetItem(made, 1, kind);
    PyTuple_SetItem(made, 2, size);
    PyTuple_SetItem(made, 3, words);
    PyTuple_SetItem(made, 4, target);
    PyTuple_SetItem(made, 5, executable);
    return made;
}

static int append_new(PyObject *list, PyObject *made)
{
    if (made == NULL)
        return -1;
    int result = PyList_Append(list, made);
    Py_DECREF(made);
    return result;
}

static PyObject *look_up(PyObject *module, PyObject *args)
{
    (void)module;
    int directory;
    const char *names, *prefix;
    Py_ssize_t at, size, prefix_bytes;
    long long newest;
    PyTypeObject *entry;
    PyObject *kind, *files, *others, *fresh;
    if (!PyArg_ParseTuple(args, "iy#ny#LO!OO!O!O!", &directory, &names, &size, &at, &prefix, &prefix_bytes, &newest,
                          &PyType_Type, &entry, &kind, &PyList_Type, &files, &PyList_Type, &others, &PyList_Type, &fresh))
        return NULL;
    if (at < 0 || at > size || !PyType_IsSubtype(entry, &PyTuple_Type)) {
        PyErr_SetString(PyExc_ValueError, "not a place in the names, or not a type of tuples");
        return NULL;
    }
    struct looked_up found[LOOK_UPS];
    int count;
    Py_BEGIN_ALLOW_THREADS
    count = look_up_some(directory, names, size, &at, found);
    Py_END_ALLOW_THREADS
    if (count == -1)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (count < 0) {
        PyErr_SetString(PyExc_ValueError, "these are no names of a directory");
        return NULL;
    }
    Py_ssize_t text_bytes = 0;
    for (int index = 0; index < count; index++) {
        const struct looked_up *one = &found[index];
        if (!S_ISREG(one->status.st_mode) || !usual_time(&one->status)) {
            if (append_new(others, Py_BuildValue("y#I", one->name, (Py_ssize_t)one->name_bytes,
                                                 (unsigned)one->status.st_mode)))
                return NULL;
            continue;
        }
        PyObject *path = path_of(prefix, prefix_bytes, one);
        text_bytes += prefix_bytes + (Py_ssize_t)one->name_bytes;
        int failed = path == NULL || append_new(files, file_entry(entry, path, kind, &one->status, &text_bytes)) ||
                     (nanoseconds(&one->status) > newest && PyList_Append(fresh, path));
        Py_XDECREF(path);
        if (failed)
            return NULL;
    }
    return Py_BuildValue("nn", at, text_bytes);
}

static int opened(int root, const char *path, const char *how, Py_ssize_t how_bytes)
{
    int file = -1;
    for (int attempt = 0; attempt < OPEN_TRIES; attempt++) {
        file = (int)syscall(SYS_OPENAT2_ANY, root, path, how, (size_t)how_bytes);
        if (file >= 0 || (errno != EAGAIN && errno != EINTR)) /* a rename during the look-up */
            break;
    }
    return file;
}

static int same_version(const struct stat *status, const char *version, Py_ssize_t bytes)
{
    char text[VERSION_BYTES];
    const char *found = version_of(status, text);
    return text + VERSION_BYTES - found == bytes && memcmp(found, version, (size_t)bytes) == 0;
}

enum outcome { COMPLETE, FAILED, NO_FILE, CHANGED, SHORTER, UNUSUAL };

/* Reads SIZE bytes of the open FILE, which must have VERSION before and after. FAILED leaves errno. */
static enum outcome read_whole(int file, char *into, Py_ssize_t size, off_t offset, const char *version,
                               Py_ssize_t version_bytes)
{
    struct stat before, after;
    if (fstat(file, &before))
        return FAILED;
    if (!S_ISREG(before.st_mode))
        return NO_FILE;
    if (!usual_time(&before))
        return UNUSUAL;
    if (!same_version(&before, version, version_bytes))
        return CHANGED;
    for (Py_ssize_t have = 0; have < size;) {
        ssize_t more = pread(file, into + have, (size_t)(size - have), offset + have);
        if (more < 0)
            return FAILED;
        if (more == 0)
            return SHORTER;
        have += more;
    }
    if (fstat(file, &after))
        return FAILED;
    if (!usual_time(&after) || !same_version(&after, version, version_bytes) ||
        after.st_ctim.tv_sec != before.st_ctim.tv_sec || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec)
        return CHANGED;
    return COMPLETE;
}

static PyObject *read_file(PyObject *module, PyObject *args)
{
    (void)module;
    int root;
    const char *path, *how, *version;
    Py_ssize_t how_bytes, version_bytes, size;
    long long offset;
    if (!PyArg_ParseTuple(args, "iyy#s#Ln", &root, &path, &how, &how_bytes, &version, &version_bytes, &offset, &size))
        return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (data == NULL)
        return NULL;
    char *into = PyBytes_AsString(data);
    enum outcome outcome = FAILED;
    int number = 0;
    Py_BEGIN_ALLOW_THREADS
    int file = opened(root, path, how, how_bytes);
    number = errno;
    if (file >= 0) {
        outcome = read_whole(file, into, size, (off_t)offset, version, version_bytes);
        number = errno;
        close(file);
    }
    Py_END_ALLOW_THREADS
    if (outcome == COMPLETE)
        return data;
    Py_DECREF(data);
    switch (outcome) {
    case NO_FILE:
        return PyUnicode_FromString("became something else than a file");
    case CHANGED:
        return PyUnicode_FromString("was changed");
    case SHORTER:
        return PyUnicode_FromString("became shorter");
    case UNUSUAL:
        Py_RETURN_NONE;
    default:
        errno = number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
}

static PyMethodDef functions[] = {
    {"read_names", read_names, METH_VARARGS, NULL},
    {"look_up", look_up, METH_VARARGS, NULL},
    {"read_file", read_file, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_tree", .m_doc = "See _tree.pyi.", .m_size = 0, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__tree(void)
{
    return PyModuleDef_Init(&definition);
}
