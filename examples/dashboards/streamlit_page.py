"""The top players as a Streamlit page, up to date within a second.

scankv serve --data ./data
streamlit run examples/dashboards/streamlit_page.py
"""

import streamlit as st

from scankv import ScanKvError
from scankv.sync import Client, TopNWatch, connect


@st.cache_resource(on_release=Client.close)
def open_client() -> Client:
    """Returns the connection that all tabs share: to $SCANKV_URL, else localhost:7070."""
    return connect()


@st.cache_resource(on_release=TopNWatch.close)
def open_watch() -> TopNWatch:
    """Returns the watch that all tabs share. The server computes its rows again only after a write."""
    return open_client().table("game.scores").watch_top_n(10, order_by="score", every=1.0)


@st.fragment(run_every=1.0)
def show_top() -> None:
    """Draws the newest rows. `latest` never waits for the server."""
    try:
        top = open_watch().latest()
    except ScanKvError as error:
        st.error(error.message)
        return
    if top is not None:
        st.bar_chart(top.rows.to_pandas(), x="player", y="score", sort=False)
        st.dataframe(top.rows.to_pandas(), hide_index=True)


st.title("Top players")
show_top()
