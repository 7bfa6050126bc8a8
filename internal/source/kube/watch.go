package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/heddle-mesh/heddle/internal/source/kube/apiserver"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

const (
	// pageSize of lists, where the API server cannot stream them: a page of
	// 500 pods is a few megabytes.
	pageSize = 500
	// headTimeout for the first byte of a list or watch: an API server ends
	// requests that are not watches after 60 s.
	headTimeout = 60 * time.Second
	// overdue is how long after its agreed end a watch is ended by us.
	overdue = 30 * time.Second
	// maxObject bounds one event of a watch, or one item of a list: etcd takes
	// 1.5 MB by default; some raise it.
	maxObject = 8 << 20
	// retryFirst and retryMax pace the attempts at an API server that is away:
	// soon enough that nobody waits for us once it is back, and with some
	// fourteen kinds half a dozen requests a second.
	retryFirst = 200 * time.Millisecond
	retryMax   = 2 * time.Second
	retrySteps = 5 // doublings from retryFirst until beyond retryMax
)

// follow keeps a shelf equal to what the API server has of its kind, until
// ctx ends: client-go's Reflector lists (as a stream, or by pages), watches,
// resumes a broken watch where it broke off, and lists again when the API
// server has forgotten where that was (410 Gone).
func follow(ctx context.Context, s *Source, sh *shelf) {
	l := &lister{source: s, shelf: sh, kind: sh.kind}
	r := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: l.watch},
		&object{}, sh, cache.ReflectorOptions{
			Name: sh.kind.Name, TypeDescription: sh.kind.Name, Logger: &klog.Logger{},
			Clock:   untilDone{done: ctx.Done()},
			Backoff: &wait.Backoff{Duration: retryFirst, Factor: 2, Jitter: 0.5, Steps: retrySteps, Cap: retryMax},
		})
	r.WatchListPageSize = pageSize
	// What goes wrong passes through lister, which tells it once and in our
	// own words; klog would tell it each time.
	r.RunWithContext(klog.NewContext(ctx, klog.Logger{}))
}

// untilDone is a clock whose waits end when the reflector is to: some of its
// pauses do not look at the context.
type untilDone struct {
	clock.RealClock
	done <-chan struct{}
}

func (c untilDone) After(d time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	go func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case now := <-t.C:
			out <- now
		case <-c.done:
			out <- time.Now()
		}
	}()
	return out
}

// object is one on its way from the API server to the shelf: read and trimmed
// already.
type object struct {
	metav1.ObjectMeta
	text *manifest.Text // nil in a bookmark
}

// GetObjectKind and DeepCopyObject make it one that a Reflector takes; it
// never changes, so it is its own copy.
func (o *object) GetObjectKind() schema.ObjectKind     { return schema.EmptyObjectKind }
func (o *object) DeepCopyObject() runtime.Object       { return o }
func (l *objectList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (l *objectList) DeepCopyObject() runtime.Object   { return l }

type objectList struct {
	metav1.ListMeta
	Items []*object
}

// read takes one object's JSON. What is wrong with it is in its text; an error
// means that it does not even say who it is.
func read(k apiserver.Kind, raw []byte) (*object, error) {
	var o struct {
		Metadata struct {
			Name            string `json:"name"`
			Namespace       string `json:"namespace"`
			UID             string `json:"uid"`
			ResourceVersion string `json:"resourceVersion"`
			Generation      int64  `json:"generation"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("read a %s: %w", k.Name, err)
	}
	m := o.Metadata
	if m.Name == "" {
		return nil, fmt.Errorf("read a %s: it has no name", k.Name)
	}
	return &object{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion, Generation: m.Generation},
		text:       manifest.ReadObject(k.APIVersion(), k.Name, raw),
	}, nil
}

// lister lists and watches one kind for its Reflector.
type lister struct {
	source *Source
	shelf  *shelf
	kind   apiserver.Kind
}

func (l *lister) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	// "0" would take any old state that the server has at hand; a restart
	// must not go back behind what peers were told before it.
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := l.open(ctx, cancel, o, false)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := readList(l.kind, resp.Body)
	if err != nil {
		err = fmt.Errorf("list %s: %w", l.kind.Plural, err)
		l.shelf.failed(err)
		return nil, err
	}
	return out, nil
}

// open sends a list or a watch; cancel ends it if its answer does not begin in
// time.
func (l *lister) open(ctx context.Context, cancel func(), o metav1.ListOptions, watching bool) (*http.Response, error) {
	late := time.AfterFunc(headTimeout, cancel)
	resp, err := l.source.Open(ctx, l.kind.Path("", ""), query(o, watching))
	if !late.Stop() {
		if err == nil {
			resp.Body.Close()
		}
		err = fmt.Errorf("the answer did not begin within %v", headTimeout)
	}
	if err != nil {
		// Forgetting where we were, and not streaming lists, are answers that
		// the Reflector has another question for.
		expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
		if !expired && !(o.SendInitialEvents != nil && apierrors.IsInvalid(err)) {
			l.shelf.failed(err)
		}
		return nil, err // as it is: the Reflector looks at its kind
	}
	if watching {
		l.shelf.works()
	}
	return resp, nil
}

func query(o metav1.ListOptions, watching bool) url.Values {
	q := url.Values{}
	set := func(key, value string, is bool) {
		if is {
			q.Set(key, value)
		}
	}
	set("watch", "true", watching)
	set("resourceVersion", o.ResourceVersion, o.ResourceVersion != "")
	set("resourceVersionMatch", string(o.ResourceVersionMatch), o.ResourceVersionMatch != "")
	set("allowWatchBookmarks", "true", o.AllowWatchBookmarks)
	set("limit", strconv.FormatInt(o.Limit, 10), o.Limit > 0)
	set("continue", o.Continue, o.Continue != "")
	if o.SendInitialEvents != nil {
		set("sendInitialEvents", strconv.FormatBool(*o.SendInitialEvents), true)
	}
	if o.TimeoutSeconds != nil {
		set("timeoutSeconds", strconv.FormatInt(*o.TimeoutSeconds, 10), true)
	}
	return q
}

// readList reads a list item by item, so that no more than one of them is
// there whole.
func readList(k apiserver.Kind, body io.Reader) (*objectList, error) {
	out := &objectList{}
	b := &bounded{from: body}
	d := json.NewDecoder(b)
	b.left = maxObject
	if err := delim(d, '{'); err != nil {
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		b.left = maxObject
		switch key {
		case "metadata":
			err = d.Decode(&out.ListMeta)
		case "items":
			err = readItems(k, d, b, out)
		default:
			var skip json.RawMessage
			err = d.Decode(&skip)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, delim(d, '}')
}

func readItems(k apiserver.Kind, d *json.Decoder, b *bounded, out *objectList) error {
	t, err := d.Token()
	if err != nil || t == nil { // null: none
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("items: %v is no list", t)
	}
	for d.More() {
		b.left = maxObject
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		o, err := read(k, raw)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, o)
	}
	return delim(d, ']')
}

func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err == nil && t != want {
		return fmt.Errorf("%v where %v should be", t, want)
	}
	return err
}

func (l *lister) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	if o.TimeoutSeconds != nil {
		// Who is asked to end a watch by then and does not is no API server any
		// more: a proxy between us that keeps the connection, say.
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+overdue)
	}
	resp, err := l.open(ctx, cancel, o, true)
	if err != nil {
		cancel()
		return nil, err
	}
	b := &bounded{from: resp.Body}
	st := &stream{lister: l, body: resp.Body, bound: b, json: json.NewDecoder(b), cancel: cancel}
	return watch.NewStreamWatcherWithLogger(klog.Logger{}, st, reporter{}), nil
}

// stream decodes a watch.
type stream struct {
	lister *lister
	body   io.Closer
	bound  *bounded
	json   *json.Decoder
	cancel func()
}

// Close ends the watch.
func (st *stream) Close() {
	st.cancel()
	st.body.Close()
}

// Decode gives the next event. A connection that breaks is io.ErrUnexpectedEOF
// whatever broke it, so that the Reflector goes on where it was; text that is
// no event is an error, and it lists again.
func (st *stream) Decode() (watch.EventType, runtime.Object, error) {
	var e struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	st.bound.left = maxObject
	if err := st.json.Decode(&e); err != nil {
		var syntax *json.SyntaxError
		var form *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTooLong):
			return "", nil, err
		case errors.As(err, &syntax), errors.As(err, &form):
			return "", nil, st.broken(err)
		}
		return "", nil, io.ErrUnexpectedEOF
	}
	switch e.Type {
	case watch.Error:
		s := &metav1.Status{}
		if err := json.Unmarshal(e.Object, s); err != nil {
			return "", nil, st.broken(err)
		}
		return e.Type, s, nil
	case watch.Bookmark:
		var b struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		if err := json.Unmarshal(e.Object, &b); err != nil {
			return "", nil, st.broken(err)
		}
		return e.Type, &object{ObjectMeta: b.Metadata}, nil
	}
	o, err := read(st.lister.kind, e.Object)
	if err != nil {
		return "", nil, st.broken(err)
	}
	return e.Type, o, nil
}

func (st *stream) broken(err error) error {
	err = fmt.Errorf("watch %s: no event: %w", st.lister.kind.Plural, err)
	st.lister.shelf.failed(err)
	return err
}

var errTooLong = fmt.Errorf("longer than %d bytes", maxObject)

// bounded lets a decoder read so much and no more; whoever decodes sets left
// anew for each value.
type bounded struct {
	from io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.from.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// reporter makes of an error an event that a Reflector lists again for.
type reporter struct{}

func (reporter) AsObject(err error) runtime.Object {
	s := apierrors.NewInternalError(err).Status()
	s.Reason = metav1.StatusReasonUnknown // an internal error would be watched again at the same place
	return &s
}
