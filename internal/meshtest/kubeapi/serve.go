package kubeapi

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bookmarkEvery is how often watches are told where they stand; a real server
// does about once a minute.
const bookmarkEvery = time.Minute

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// target is what a path names.
type target struct {
	table           *table
	namespace, name string
	sub             string
}

// find reads a path; s.mu is held.
func (s *Server) find(path string) (x target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	head := 2
	if parts[0] == "apis" {
		head = 3
	}
	if len(parts) <= head {
		return x, false
	}
	prefix, rest := "/"+strings.Join(parts[:head], "/"), parts[head:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		x.namespace, rest = rest[1], rest[2:]
	}
	x.table = s.tables[prefix+"/"+rest[0]]
	if x.table == nil || s.hidden[rest[0]] {
		return x, false
	}
	if len(rest) > 1 {
		x.name = rest[1]
	}
	if len(rest) > 2 {
		x.sub = rest[2]
	}
	return x, true
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay != nil {
		delay(r)
	}
	if r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" {
		s.review(w, r)
		return
	}
	s.mu.Lock()
	x, ok := s.find(r.URL.Path)
	refuse := 0
	if ok {
		refuse = s.refuse[x.table.Plural]
	}
	s.mu.Unlock()
	switch {
	case refuse != 0:
		fail(w, refuse, map[int]string{403: "Forbidden", 429: "TooManyRequests", 500: "InternalError"}[refuse], "told to refuse")
	case !ok && s.discover(w, r.URL.Path):
	case !ok:
		fail(w, 404, "NotFound", "the server could not find the requested resource")
	case r.URL.Query().Get("watch") == "true":
		s.count("watch " + x.table.Plural)
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			s.count("stream " + x.table.Plural)
		}
		s.watch(w, r, x.table)
	case r.Method == http.MethodGet && x.name == "":
		s.count("list " + x.table.Plural)
		s.list(w, r, x.table)
	default:
		s.one(w, r, x)
	}
}

func (s *Server) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// discover answers /apis/GROUP/VERSION.
func (s *Server) discover(w http.ResponseWriter, path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []object
	for _, k := range slices.Sorted(maps.Keys(s.tables)) {
		if t := s.tables[k]; t.prefix() == path && !s.hidden[t.Plural] {
			list = append(list, object{"name": t.Plural, "kind": t.Kind, "namespaced": !t.Cluster}, object{"name": t.Plural + "/status"})
		}
	}
	if list != nil {
		answer(w, 200, object{"kind": "APIResourceList", "groupVersion": strings.TrimPrefix(path, "/apis/"), "resources": list})
	}
	return list != nil
}

// list gives pages; the continue token is "VERSION KEY", and the whole list is
// as of its first page only as far as nothing changes meanwhile.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t *table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	version, from := s.version, ""
	if c := q.Get("continue"); c != "" {
		at, key, _ := strings.Cut(c, " ")
		version, _ = strconv.ParseInt(at, 10, 64)
		if from = key; version < t.floor {
			fail(w, 410, "Expired", "the provided continue parameter is too old")
			return
		}
	}
	meta := object{"resourceVersion": fmt.Sprint(version)}
	items := []object{}
	for _, k := range slices.Sorted(maps.Keys(t.objects)) {
		if k <= from && from != "" {
			continue
		}
		if limit > 0 && len(items) == limit {
			last := items[len(items)-1]
			meta["continue"] = fmt.Sprintf("%d %s", version, keyOf(last))
			break
		}
		o := maps.Clone(t.objects[k])
		if t.Group == "" || strings.HasSuffix(t.Group, ".k8s.io") { // as Kubernetes does for its own
			delete(o, "kind")
			delete(o, "apiVersion")
		}
		items = append(items, o)
	}
	answer(w, 200, object{"kind": t.Kind + "List", "apiVersion": t.apiVersion(), "metadata": meta, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, t *table) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	from, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	s.mu.Lock()
	stream := !s.noStream
	floor, now := t.floor, s.version
	garbage := s.garbage[t.Plural]
	if !initial {
		delete(s.garbage, t.Plural)
	}
	s.mu.Unlock()
	switch {
	case initial && !stream:
		fail(w, 422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		return
	case from > now:
		fail(w, 504, "Timeout", "Too large resource version")
		return
	case from < floor && !initial:
		fail(w, 410, "Expired", fmt.Sprintf("too old resource version: %d (%d)", from, floor))
		return
	}
	end, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	if end == 0 {
		end = 1800
	}
	timeout := time.NewTimer(time.Duration(end) * time.Second)
	defer timeout.Stop()
	ticker := time.NewTicker(bookmarkEvery)
	defer ticker.Stop()
	w.Header().Set("Content-Type", "application/json")
	out := sender{json.NewEncoder(w), w.(http.Flusher), t}
	out.flush.Flush()
	if initial {
		from = s.sendAll(out, t)
	} else if garbage != "" {
		_, _ = io.WriteString(w, garbage)
		out.flush.Flush()
	}
	for {
		s.mu.Lock()
		wake, events, floor := s.wake, since(t.events, from), t.floor
		s.mu.Unlock()
		if from < floor {
			out.send("ERROR", object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"})
			return
		}
		for _, e := range events {
			out.send(e.kind, e.object)
			from = e.version
		}
		select {
		case <-wake:
		case <-ticker.C:
			s.mu.Lock()
			from = max(from, s.version)
			s.mu.Unlock()
			out.bookmark(from, false)
		case <-timeout.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func since(all []event, version int64) []event {
	i, _ := slices.BinarySearchFunc(all, version, func(e event, v int64) int { return int(e.version - v) })
	for i < len(all) && all[i].version <= version {
		i++
	}
	return all[i:]
}

type sender struct {
	json  *json.Encoder
	flush http.Flusher
	table *table
}

func (x sender) send(kind string, o object) {
	_ = x.json.Encode(object{"type": kind, "object": o})
	x.flush.Flush()
}

func (x sender) bookmark(version int64, end bool) {
	m := object{"resourceVersion": fmt.Sprint(version)}
	if end {
		m["annotations"] = object{"k8s.io/initial-events-end": "true"}
	}
	x.send("BOOKMARK", object{"kind": x.table.Kind, "apiVersion": x.table.apiVersion(), "metadata": m})
}

// sendAll streams a list.
func (s *Server) sendAll(out sender, t *table) int64 {
	s.mu.Lock()
	objects, version := maps.Clone(t.objects), s.version
	s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(objects)) {
		out.send("ADDED", objects[k])
	}
	out.bookmark(version, true)
	return version
}

// one reads or writes an object.
func (s *Server) one(w http.ResponseWriter, r *http.Request, x target) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := x.table.objects[x.namespace+"/"+x.name]
	if old == nil && r.Method != http.MethodPost {
		fail(w, 404, "NotFound", fmt.Sprintf("%s %q not found", x.table.Plural, x.name))
		return
	}
	next := object{}
	switch r.Method {
	case http.MethodGet:
		answer(w, 200, old)
		return
	case http.MethodDelete:
		s.remove(x.table, x.namespace+"/"+x.name)
		answer(w, 200, object{"kind": "Status", "status": "Success"})
		return
	case http.MethodPost, http.MethodPut:
		err = json.Unmarshal(body, &next)
	case http.MethodPatch:
		next, err = patched(r.Header.Get("Content-Type"), old, body)
	default:
		err = fmt.Errorf("method %s", r.Method)
	}
	if err != nil {
		fail(w, 400, "BadRequest", err.Error())
		return
	}
	s.write(w, x, old, next)
}

// write stores what a POST, PUT or PATCH made; s.mu is held.
func (s *Server) write(w http.ResponseWriter, x target, old, next object) {
	if old == nil {
		if metadata(next)["namespace"] == nil && !x.table.Cluster {
			metadata(next)["namespace"] = x.namespace
		}
		if x.table.objects[keyOf(next)] != nil {
			fail(w, 409, "AlreadyExists", "already exists")
			return
		}
		answer(w, 201, s.store(x.table, next))
		return
	}
	if v := text(metadata(next), "resourceVersion"); v != "" && v != text(metadata(old), "resourceVersion") {
		fail(w, 409, "Conflict", "the object has been modified")
		return
	}
	switch {
	case x.sub == "status":
		status := next["status"]
		next = clone(old)
		next["status"] = status
	case old["status"] != nil && strings.Contains(x.table.Group, "heddle.dev"):
		next["status"] = old["status"]
	}
	if metadata(next)["resourceVersion"] = metadata(old)["resourceVersion"]; equal(old, next) {
		answer(w, 200, old)
		return
	}
	answer(w, 200, s.store(x.table, next))
}

// patched applies a merge patch (RFC 7396), or of RFC 6902 add and replace.
func patched(form string, old object, body []byte) (object, error) {
	next := clone(old)
	if form == "application/merge-patch+json" {
		var patch object
		err := json.Unmarshal(body, &patch)
		merge(next, patch)
		return next, err
	}
	var steps []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(body, &steps); err != nil {
		return nil, err
	}
	for _, st := range steps {
		if st.Op != "add" && st.Op != "replace" {
			return nil, fmt.Errorf("operation %s", st.Op)
		}
		if err := set(next, strings.Split(st.Path, "/")[1:], st.Value); err != nil {
			return nil, err
		}
	}
	return next, nil
}

func merge(into, patch object) {
	for k, v := range patch {
		inner, isObject := v.(object)
		have, both := into[k].(object)
		switch {
		case v == nil:
			delete(into, k)
		case isObject && both:
			merge(have, inner)
		default:
			into[k] = v
		}
	}
}

func set(at any, path []string, v any) error {
	switch x := at.(type) {
	case object:
		if len(path) == 1 {
			x[path[0]] = v
			return nil
		}
		return set(x[path[0]], path[1:], v)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(x) || len(path) == 1 {
			return fmt.Errorf("no place %v", path)
		}
		return set(x[i], path[1:], v)
	}
	return fmt.Errorf("no place %v", path)
}

func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Spec struct {
			Token     string
			Audiences []string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || s.Review == nil {
		fail(w, 400, "BadRequest", "no reviews")
		return
	}
	answer(w, 201, object{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": s.Review(q.Spec.Token, q.Spec.Audiences)})
}
