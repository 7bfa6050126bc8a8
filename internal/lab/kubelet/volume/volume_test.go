package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func pod(vs ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Volumes: vs}}
}

func vol(name string, src corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: src}
}

func tokenVolume(name, audience string, seconds int64) corev1.Volume {
	return vol(name, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, ExpirationSeconds: &seconds, Path: "token"}},
	}}})
}

func TestContents(t *testing.T) {
	host := t.TempDir()
	mode := int32(0o640)
	p := pod(
		vol("empty", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		vol("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}),
		vol("config", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "c"}, DefaultMode: &mode}}),
		vol("secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "s", Items: []corev1.KeyToPath{{Key: "k", Path: "deep/er/k"}}}}),
		vol("labels", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}),
		tokenVolume("token", "aud", 600),
	)
	s := New(Config{Pod: p, Dir: t.TempDir(),
		Token: func(_ context.Context, aud string, d time.Duration) (string, time.Time, error) {
			return aud + " " + d.String(), time.Now().Add(d), nil
		},
		Data: func(kind, name string) (map[string][]byte, error) {
			return map[string][]byte{"k": []byte(kind + "/" + name)}, nil
		},
		Field: func(path string) (string, error) { return "<" + path + ">", nil },
	})
	for range 2 { // again, as after an error
		if err := s.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]string{
		"config/k": "ConfigMap/c", "secret/deep/er/k": "Secret/s", "labels/name": "<metadata.name>", "token/token": "aud 10m0s",
	} {
		name, file, _ := strings.Cut(at, "/")
		dir, err := s.Path(name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", at, b, err)
		}
		if es, _ := os.ReadDir(dir); len(es) != 3 { // the version, ..data, the name
			t.Errorf("%s: %d entries", name, len(es))
		}
	}
	dir, _ := s.Path("config")
	if st, err := os.Stat(filepath.Join(dir, "k")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if got, _ := s.Path("host"); got != host {
		t.Errorf("hostPath at %s", got)
	}
	dir, _ = s.Path("empty")
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("emptyDir: mode %v, %v", st.Mode(), err)
	}
	if _, err := s.Path("other"); err == nil {
		t.Error("an unknown volume has a path")
	}
}

func TestErrorsNameTheField(t *testing.T) {
	yes := true
	cm := func(name string, optional *bool, items ...corev1.KeyToPath) corev1.Volume {
		return vol("v", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: optional, Items: items}})
	}
	file := corev1.HostPathFile
	for want, v := range map[string]corev1.Volume{
		`ConfigMap "gone" not found`:  cm("gone", nil),
		`has no key "x"`:              cm("there", nil, corev1.KeyToPath{Key: "x", Path: "x"}),
		`must stay inside the volume`: cm("there", nil, corev1.KeyToPath{Key: "k", Path: "../k"}),
		`nobody here makes tokens`:    tokenVolume("v", "", 1),
		`the lab has only emptyDir`:   vol("v", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}),
		`hostPath: stat /no/such`:     vol("v", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/no/such"}}),
		`is no File`:                  vol("v", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: &file}}),
		"":                            cm("gone", &yes, corev1.KeyToPath{Key: "k", Path: "k"}),
	} {
		s := New(Config{Pod: pod(v), Dir: t.TempDir(), Data: func(_, name string) (map[string][]byte, error) {
			if name == "gone" {
				return nil, nil
			}
			return map[string][]byte{"k": nil}, nil
		}})
		err := s.Prepare(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "volume v")) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTokensAreRenewedInTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var made []string
		var fail atomic.Bool
		s := New(Config{Pod: pod(tokenVolume("a", "a", 100), tokenVolume("b", "b", 1000)), Dir: dir,
			Token: func(_ context.Context, aud string, d time.Duration) (string, time.Time, error) {
				made = append(made, fmt.Sprintf("%s@%v", aud, time.Since(start)))
				if fail.Load() {
					return "", time.Time{}, errors.New("not now")
				}
				return made[len(made)-1], time.Now().Add(d), nil
			}})
		if err := s.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		read := func(v string) string {
			b, err := os.ReadFile(filepath.Join(dir, v, "token"))
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		time.Sleep(79 * time.Second)
		if read("a") != "a@0s" {
			t.Errorf("renewed too early: %v", made)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if read("a") != "a@1m20s" || read("b") != "b@0s" {
			t.Errorf("after 80 s: %v", made)
		}
		fail.Store(true)
		time.Sleep(85 * time.Second) // 160 s: fails
		fail.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := read("a"); got != "a@2m50s" && got != "a@2m51s" {
			t.Errorf("after a failure: %s, %v", got, made)
		}
		cancel()
		<-done
	})
}
